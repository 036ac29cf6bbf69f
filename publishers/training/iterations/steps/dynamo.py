"""Keeps PyTorch's compiler out of our hooks, which it calls from optimizer steps that it traces.

PyTorch is not imported for it: `torch.compiler.disable` would be, and every worker of a data loader pays for that.
"""

from collections.abc import Callable


def untraced(hook: Callable[..., None]) -> Callable[..., None]:
    """Mark a hook as `torch.compiler.disable` does, and return it.

    Dynamo then calls it between two graphs. Unmarked, it would trace whatever the hook calls, and warn of each built-in
    function there. The mark breaks no graph that was whole: PyTorch's own wrapper of `step` breaks it already.
    """
    vars(hook).update(_torchdynamo_disable=True, _torchdynamo_disable_msg="it counts the steps, outside of any graph")
    return hook
