"""The two-level scheduler of ByteGNN (§4.2) as a pure state machine: ``Scheduler.on(event, now) -> actions``.

::

    sessions        SessionOpened, BatchTaken, Utilisation, Tick
       |                 |
       v                 v
    coarse level    launch score >= sigma?  caps on batches and bytes, liveness      -> LaunchDag, WakeAt
       |                 DAG ids ascend in launch order
       v
    DAG instances   which tasks does a finished task make ready? (atta.samplers.dag.instance) <- TaskDone
       |                 ready tasks
       v
    fine level      two lanes, CPU and NET, each ordered by (DAG id, cost, arrival)  -> RunTask
       |                 END done
       v
    output queue    finished batches in batch order                                 -> BatchReady

Nothing here waits, measures or sends: the daemon, the tests and the simulator drive the same object. The decision log
(``Scheduler.log``) tells which event caused which actions. docs/internals/scheduler.md has the formulas, and the decisions where
the paper is silent.

Reading order: ``events`` (the whole interface), ``policies`` (the table of launch policies), ``coarse``,
``fine``, ``scheduler`` (ties them together), ``config``.
"""
