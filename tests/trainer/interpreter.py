"""A synchronous callback list over a plain Python loop: what a run must look like (DESIGN 3)."""


class Interpreter:
    """`callbacks` are (name, function of (interpreter, hook)); `step` and `evaluate` compute.

    `patch` is a function (state, name, value) -> state for the values that the step reads.
    """

    def __init__(self, callbacks, step, evaluate, patch, state, params):
        self.callbacks, self.step, self.evaluate, self.patch = callbacks, step, evaluate, patch
        self.state = self.committed = state
        self.params, self.mode = params, "train"
        self.reason, self.cut = None, False

    def fire(self, hook):
        self.pending = {}
        for name, callback in self.callbacks:
            self.by = name
            callback(self, hook)
        for name, value in self.pending.items():
            self.state = self.patch(self.state, name, value)
        self.committed = self.state

    def request_stop(self, reason, scope=None):
        if self.mode == "eval":
            self.cut = True
        if (scope or self.mode) == "train" and self.reason is None:
            self.reason = (self.by, reason)

    def asked(self):
        return self.cut if self.mode == "eval" else self.reason is not None

    def fit(self, epochs, initial, data, valid, due):
        self.params["cur_step_num"] = 0
        self.fire("on_train_begin")
        for epoch in range(initial + 1, epochs + 1):
            if self.asked():
                break
            self.params["cur_epoch_num"] = epoch
            self.fire("on_train_epoch_begin")
            for batch in data:
                if self.asked():
                    break
                self.params["cur_step_num"] += 1
                self.fire("on_train_step_begin")
                self.state, self.params["net_outputs"] = self.step(self.state, batch)
                self.fire("on_train_step_end")
            if due(epoch):
                self.validate(valid)
            self.fire("on_train_epoch_end")
            self.params.pop("metrics", None)
        self.ended_by = self.reason
        self.fire("on_train_end")

    def validate(self, valid):
        before = {k: self.params[k] for k in ("cur_step_num", "net_outputs") if k in self.params}
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
        self.params["metrics"] = {"loss": sum(losses) / len(losses)} if losses else {}
        self.fire("on_eval_end")
        self.mode = "train"
        self.params.pop("net_outputs", None)
        self.params.update(before)
