"""Names in `cb_params` that are the run's own, and those that only the compiled step reads."""

# What the run itself publishes (MindSpore's names; `cur_batch_num` counts within the epoch).
FACTS = frozenset(
    """
    run_id mode epoch_num batch_num cur_epoch_num cur_step_num cur_batch_num net_outputs metrics
    eval_results metric_names network loss_fn optimizer eval_network train_dataset valid_dataset
    train_dataset_element eval_dataset_element parallel_mode device_number list_callback
    dataset_sink_mode status stop_reason stop_by stop_at epoch_loss resumed_step resumed_epoch
    """.split()
)
# Names that only make sense when the compiled step reads them.
HYPERPARAMS = frozenset("learning_rate momentum weight_decay b1 b2 eps train_network".split())
RESULTS = frozenset({"metrics", "eval_results"})  # of a validation
INJECT = (
    "build the optimizer with optax.inject_hyperparams, for example "
    "optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)"
)
