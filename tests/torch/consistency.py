"""Ranks that train apart are found, all told the same, and the first difference is named; sound training raises no alarm."""

from collections.abc import Callable

import torch
import torch.distributed as dist

import harness
import tightwire.torch
from harness import attach, loss_of, model, raises, wrap
from tightwire import Error, Status

Optimizer = torch.optim.Optimizer
Parameters = dict[str, torch.nn.Parameter]


def errs() -> bool:
    return harness.rank() == harness.size() - 1


def sgd(parameters: list[torch.nn.Parameter]) -> Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def train(make: Callable[[list[torch.nn.Parameter]], Optimizer], spoil: Callable[[Optimizer, Parameters], None], steps: int = 6,
          **checked: object) -> None:
    """Compares in every step, and does something on the last rank after the third."""
    ddp = wrap(model())
    sync = attach(ddp, "int4:block=64")
    optimizer = make(list(ddp.module.parameters()))
    sync.check_consistency(optimizer, **{"every": 1, **checked})
    try:
        for step in range(steps):
            optimizer.zero_grad()
            loss_of(ddp, step).backward()
            optimizer.step()
            if step == 2 and errs():
                spoil(optimizer, dict(ddp.module.named_parameters()))
    except RuntimeError as error:  # so it comes from backward
        assert sync.error is not None and str(sync.error) in str(error), error
        raise sync.error from error
    finally:
        sync.close()


def found(make: Callable[[list[torch.nn.Parameter]], Optimizer], spoil: Callable[[Optimizer, Parameters], None], *texts: str,
          **checked: object) -> None:
    told: list[object] = [None] * harness.size()
    with raises(Error, *texts):
        try:
            train(make, spoil, **checked)
        except Error as error:
            assert error.status == Status.MISMATCH
            dist.all_gather_object(told, str(error))
            assert len(set(told)) == 1, told
            raise


def test_sound_training_raises_no_alarm() -> None:
    for make in (sgd, lambda p: torch.optim.Adam(p, lr=1e-2), lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True)):
        train(make, lambda optimizer, parameters: None, steps=20, equal={"sampler seed": 5},
              differ={"augmentation seed": lambda: 100 + harness.rank()})


def test_momentum_that_was_not_summed() -> None:
    def local(optimizer: Optimizer, parameters: Parameters) -> None:
        optimizer.state[parameters["body.weight"]]["momentum_buffer"].mul_(1.5)

    found(sgd, local, f'after step 3: "body.weight: momentum_buffer": rank {harness.size() - 1} has hash ')


def test_a_step_that_one_rank_took_twice() -> None:
    def again(optimizer: Optimizer, parameters: Parameters) -> None:
        optimizer.step()

    found(lambda p: torch.optim.Adam(p, lr=1e-2), again, f'"head.weight: step": rank {harness.size() - 1} has 4', "have 3"
          if harness.size() > 2 else "has 3")


def test_learning_rate_of_one_rank() -> None:
    def faster(optimizer: Optimizer, parameters: Parameters) -> None:
        optimizer.param_groups[0]["lr"] = 0.2

    found(sgd, faster, f'"group 0: lr": rank {harness.size() - 1} has 0.2')


def test_a_changed_parameter() -> None:
    def change(optimizer: Optimizer, parameters: Parameters) -> None:
        with torch.no_grad():
            parameters["stem.bias"][3] += 1e-3

    found(sgd, change, f'"stem.bias": rank {harness.size() - 1} has hash ', "(1 of ")


def test_seeds() -> None:
    last = harness.size() - 1
    found(sgd, lambda optimizer, parameters: None, f'after step 0: "sampler seed": rank {last} has 6',
          equal={"sampler seed": 6 if errs() else 5})
    found(sgd, lambda optimizer, parameters: None, 'coincide after step 0: "augmentation seed": ranks 0 ', "all have 7",
          differ={"augmentation seed": 7})


def test_tensors_in_lists() -> None:
    """Of which `repr` would leave out the middle, where they differ here: in the state of an optimizer, and in a setting."""
    def history(spoil: bool, optimizer: Optimizer) -> None:
        values = torch.zeros(5000)
        values[2500] = 1.0 if spoil else 0.0
        optimizer.param_groups[0]["history"] = [{"steps": (values, 3)}]

    def make(parameters: list[torch.nn.Parameter]) -> Optimizer:
        optimizer = sgd(parameters)
        history(False, optimizer)
        return optimizer

    train(make, lambda optimizer, parameters: None)
    found(make, lambda optimizer, parameters: history(True, optimizer), f'"group 0: history": rank {harness.size() - 1} has hash')

    ddp = wrap(model())
    sync = attach(ddp)
    optimizer = sgd(list(ddp.module.parameters()))
    check = sync.check_consistency(optimizer)
    for array in (torch.Tensor.clone, torch.Tensor.numpy):
        values = torch.zeros(5000)
        values[2500] = 1.0 if errs() else 0.0
        optimizer.state[ddp.module.body.weight]["old_directions"] = [array(values)]
        with raises(Error, '"body.weight: old_directions": rank'):
            check.compare()
    sync.close()


def test_at_once_and_in_between() -> None:
    """Every second step; by hand, after which training goes on."""
    ddp = wrap(model())
    sync = attach(ddp)
    optimizer = sgd(list(ddp.module.parameters()))
    check = sync.check_consistency(optimizer, every=2)
    loss_of(ddp, 0).backward()
    optimizer.step()
    parameter = next(iter(ddp.module.parameters()))
    with torch.no_grad():
        parameter[0, 0] += 1.0 if errs() else 0.0
    with raises(Error, '"head.weight": rank'):
        check.compare()
    assert sync.error is None
    loss_of(ddp, 1).backward()  # the second step is not compared
    optimizer.step()
    with raises(RuntimeError, '"head.weight": rank'):
        loss_of(ddp, 2).backward()
    assert sync.error is not None and sync.error.status == Status.MISMATCH
    with raises(Error, "every must be 1 or more"):
        sync.check_consistency(optimizer, every=0)
    sync.close()


if __name__ == "__main__":
    harness.run(harness.cases_of(globals()))
