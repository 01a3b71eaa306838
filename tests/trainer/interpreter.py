"""A synchronous callback list over a plain Python loop: what a run must look like (DESIGN 3)."""


class Failed(Exception):
    """A callback has raised."""


class Interpreter:
    """`callbacks` are functions `(view, hook)`; `step` and `evaluate` compute."""

    def __init__(self, callbacks, step, state, evaluate):
        self.callbacks, self.step, self.state, self.evaluate = callbacks, step, state, evaluate
        self.params, self.mode, self.stops, self.trace = {}, "train", {}, []
        self.reason, self.cut = None, False

    def fire(self, hook):
        self.trace.append(hook)
        for name, callback in self.callbacks:
            self.by = name
            callback(self, hook)

    def request_stop(self, reason, scope=None):
        scope = scope or self.mode
        if self.mode == "eval":
            self.cut = True
        if scope == "train" and self.reason is None:
            self.reason = (self.by, reason)

    def asked(self):
        return self.cut if self.mode == "eval" else self.reason is not None

    def fit(self, epochs, initial, data, valid, due):
        self.params.update(cur_step_num=0)
        self.fire("on_train_begin")
        for epoch in range(initial + 1, epochs + 1):
            if self.asked():
                break
            self.params.update(cur_epoch_num=epoch)
            self.fire("on_train_epoch_begin")
            self.params.pop("metrics", None)
            for batch in data:
                if self.asked():
                    break
                self.params["cur_step_num"] += 1
                self.fire("on_train_step_begin")
                self.state, loss = self.step(self.state, batch)
                self.params["net_outputs"] = loss
                self.fire("on_train_step_end")
            if due(epoch):
                self.validate(valid)
            self.fire("on_train_epoch_end")
            self.params.pop("metrics", None)
        self.fire("on_train_end")

    def validate(self, valid):
        before = {key: self.params.get(key) for key in ("cur_step_num", "net_outputs")}
        self.mode, self.cut = "eval", False
        self.params["cur_step_num"] = 0
        self.fire("on_eval_begin")
        self.fire("on_eval_epoch_begin")
        losses = []
        for batch in valid:
            if self.asked():
                break
            self.params["cur_step_num"] += 1
            self.fire("on_eval_step_begin")
            losses.append(self.evaluate(self.state, batch))
            self.params["net_outputs"] = losses[-1]
            self.fire("on_eval_step_end")
        self.fire("on_eval_epoch_end")
        self.params["metrics"] = len(losses)
        self.fire("on_eval_end")
        self.mode = "train"
        self.params.update(before)
