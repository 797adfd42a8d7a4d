"""Communicators and Sessions from Python, without any framework."""

import array
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from collections.abc import Callable
from typing import Any

import tightwire
from tightwire import Communicator, Error, Session, Status

COUNT = 64 * 48


def gradient_of(rank: int, step: int = 0) -> "array.array[float]":
    return array.array("f", (((i * 37 + rank * 11 + step * 5) % 101) / 50 - 1 for i in range(COUNT)))


def on_threads(size: int, body: Callable[[Communicator], Any]) -> list[Any]:
    """What `body` returned on every rank; raises what the first one raised."""
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(communicator: Communicator) -> None:
        with communicator:
            try:
                results[communicator.rank] = body(communicator)
            except BaseException as error:
                errors.append(error)
                communicator.abort(str(error))

    threads = [threading.Thread(target=run, args=(each,)) for each in Communicator.in_process(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def sealed(communicator: Communicator, specification: str) -> Session:
    session = Session(communicator, specification)
    session.add("weight", (64, 48))
    session.add("bias", [3], "float32")
    session.seal()
    return session


class SessionTest(unittest.TestCase):
    @contextlib.contextmanager
    def fails(self, status: Status, text: str) -> Any:
        with self.assertRaises(Error) as caught:
            yield
        self.assertIn(text, str(caught.exception))
        self.assertEqual(caught.exception.status, status)

    def test_ranks_agree(self) -> None:
        def rank(communicator: Communicator) -> bytes:
            with sealed(communicator, "int8:block=64 exact=bias") as session:
                for step in range(3):
                    weight, bias = gradient_of(communicator.rank, step), array.array("f", [communicator.rank] * 3)
                    session.all_reduce([weight, bias])
                    self.assertTrue(session.commit())
                    self.assertEqual(list(bias), [1.0] * 3)
                    mean = [sum(all_three) / 3 for all_three in zip(*(gradient_of(r, step) for r in range(3)))]
                    self.assertLess(max(abs(a - b) for a, b in zip(weight, mean)), 0.06)
                self.assertEqual(communicator.gather(communicator.rank + 5), [5, 6, 7])
                self.assertIn('"bias" [3] fp32 exact', session.description)
                self.assertGreaterEqual(session.residual_bytes, 4 * COUNT)
                last, total = session.statistics(), session.statistics("all steps")
                self.assertEqual((last.gradient_bytes, total.gradient_bytes), (4 * COUNT + 12, 3 * (4 * COUNT + 12)))
                self.assertTrue(0 < last.sent_bytes < 2 * last.gradient_bytes)
                return weight.tobytes()

        self.assertEqual(len(set(on_threads(3, rank))), 1)

    def test_ranks_that_drifted_apart(self) -> None:
        def rank(communicator: Communicator) -> str:
            me, weight = communicator.rank, array.array("f", [1.0] * 1000)
            equal: dict[str, Any] = {"epoch": 3, "empty": b"", "weight": weight}
            communicator.compare(10, equal, {"seed": 7 + me})
            with self.fails(Status.MISMATCH, '"seed": ranks 0 to 2 all have 7, and every rank must have its own'):
                communicator.compare(11, equal, {"seed": 7})
            weight[999] += me == 2
            with self.assertRaises(Error) as caught:
                communicator.compare(12, equal)
            with self.fails(Status.INVALID_ARGUMENT, '"strided" is not contiguous'):
                communicator.compare(13, {"strided": memoryview(weight)[::2]})
            with self.fails(Status.MISMATCH, '"epoch": rank 2 has 4; ranks 0 and 1 have 3'):
                communicator.compare(14, {"epoch": 4 if me == 2 else 3})
            return str(caught.exception)

        texts = on_threads(3, rank)
        self.assertEqual(len(set(texts)), 1, "every rank is told the same")
        self.assertIn('after step 12: "weight": rank 2 has hash ', texts[0])

    def test_timeouts(self) -> None:
        def rank(communicator: Communicator) -> None:
            for limit in (0.0, -1.0, float("nan")):
                with self.fails(Status.INVALID_ARGUMENT, "timeout_ms must be positive"):
                    communicator.gather(1, limit)
                with self.fails(Status.INVALID_ARGUMENT, "timeout_ms must be positive"):
                    communicator.compare(1, {"seed": 3}, timeout=limit)
                with self.fails(Status.INVALID_ARGUMENT, "timeout_ms is negative"):
                    Communicator.join(0, 1, "", "", limit)
            for limit in (1e-9, 1e300, float("inf")):
                if limit > 1 or communicator.size == 1:
                    self.assertEqual(communicator.gather(4, limit), [4] * communicator.size)

        on_threads(1, rank)
        on_threads(2, rank)

    def test_scaled_residuals(self) -> None:
        def rank(communicator: Communicator) -> None:
            with Session(communicator, "int4:block=64") as session:
                session.add("weight", (64, 48))
                session.seal()
                results = []
                for factor in (None, 1.0, 0.0):
                    if factor is not None:
                        session.scale_residuals(factor)
                    weight = gradient_of(communicator.rank)
                    session.all_reduce([weight])
                    if factor is None:
                        with self.fails(Status.INVALID_ARGUMENT, "the step committed"):
                            session.scale_residuals(2.0)
                    session.commit()
                    results.append(weight.tobytes())
                self.assertNotEqual(results[0], results[1], "the second step has what the first one dropped")
                self.assertEqual(results[0], results[2], "forgotten, it is as in the beginning")

        on_threads(2, rank)

    def test_residuals_in_bf16(self) -> None:
        def rank(communicator: Communicator) -> int:
            with sealed(communicator, "int8:block=64 residual=bf16") as half, sealed(communicator, "int8:block=64") as whole:
                self.assertIn("error feedback on, residuals in bf16", half.description)
                self.assertLess(half.residual_bytes, 0.7 * whole.residual_bytes)
                for session in (half, whole):
                    weight, bias = gradient_of(communicator.rank), array.array("f", [0.0] * 3)
                    session.all_reduce([weight, bias])
                    session.commit()
            with self.fails(Status.INVALID_ARGUMENT, "must be fp32 or bf16"):
                Session(communicator, "int8 residual=fp16")
            return communicator.rank

        self.assertEqual(on_threads(2, rank), [0, 1])

    def test_one_waits_while_another_starts(self) -> None:
        def rank(communicator: Communicator) -> None:
            with Session(communicator, "int8:block=64") as session:
                parameters = [session.add(f"w{i}", (64, 48)) for i in range(4)]
                buckets = [session.add_bucket([parameter]) for parameter in reversed(parameters)]
                session.seal()
                self.assertEqual(session.buckets, [[3], [2], [1], [0]])
                gradients = [gradient_of(communicator.rank, bucket) for bucket in buckets]
                started = threading.Semaphore(0)
                waiter = threading.Thread(target=lambda: [started.acquire() and session.wait(b) for b in buckets])
                waiter.start()
                for bucket in buckets:
                    session.start(bucket, [gradients[bucket]])
                    started.release()
                waiter.join()
                session.commit()
                self.assertEqual(session.statistics().calls, 4)
                self.assertLess(abs(gradients[2][0] - (gradient_of(0, 2)[0] + gradient_of(1, 2)[0]) / 2), 0.06)

        on_threads(2, rank)

    def test_over_nodes(self) -> None:
        def rank(communicator: Communicator) -> bytes:
            specification = "hier(inside=bf16, across=int8:block=64,round=nearest, levels=node:3+1) timeout=20"
            with Session(communicator, specification) as session:
                session.add("weight", (192, 128))
                session.seal()
                self.assertIn("hierarchy of nodes 0 1 2 | 3, inside bf16", session.description)
                self.assertIn("over 2 nodes of 3+1", session.description)
                weight = array.array("f", list(gradient_of(communicator.rank)) * 8)
                session.all_reduce([weight])
                self.assertTrue(session.commit())
                mean = [sum(all_four) / 4 for all_four in zip(*(gradient_of(r) for r in range(4)))]
                self.assertLess(max(abs(a - b) for a, b in zip(weight, mean * 8)), 0.06)
                return weight.tobytes()

        self.assertEqual(len(set(on_threads(4, rank))), 1)

    def test_other_operations(self) -> None:
        def rank(communicator: Communicator) -> None:
            me, size = communicator.rank, communicator.size
            with Session(communicator, "exact operation=sum") as session:
                operations = ["reduce_scatter", "all_gather", "broadcast"]
                parameters = [session.add(operation, (size, 2), "float32", operation, root=1) for operation in operations]
                session.seal()
                buckets = [session.bucket_of(parameter) for parameter in parameters]
                gradients = [array.array("f", [10.0 * me + i for i in range(2 * size)]) for _ in buckets]
                for bucket, gradient in zip(buckets, gradients):
                    session.start(bucket, [gradient])
                for bucket in buckets:
                    session.wait(bucket)
                session.commit()
                scattered, gathered, told = map(list, gradients)
                self.assertEqual(scattered[2 * me : 2 * me + 2], [30.0 + 3 * i for i in (2 * me, 2 * me + 1)])
                self.assertEqual(gathered, [10.0 * (i // 2) + i for i in range(6)])
                self.assertEqual(told, [10.0 + i for i in range(6)])

        on_threads(3, rank)

    def test_states(self) -> None:
        def rank(communicator: Communicator) -> bytes:
            with sealed(communicator, "int4:block=32 small=compressed") as session:
                bias = array.array("f", [0.1, 0.2, 0.3])
                session.all_reduce([gradient_of(communicator.rank), bias])
                session.commit()
                state = session.save()
                outcomes = []
                for restore in (lambda: None, lambda: session.restore(state)):
                    restore()
                    weight = gradient_of(communicator.rank, 1)
                    session.all_reduce([weight, array.array("f", bias)])
                    session.rollback()
                    outcomes.append(weight.tobytes())
                self.assertEqual(outcomes[0], outcomes[1])
                with self.fails(Status.CORRUPT, ""):
                    session.restore(state[:-1])
                return state

        states = on_threads(2, rank)

        def fewer(communicator: Communicator) -> None:
            with sealed(communicator, "int4:block=32 small=compressed") as session:
                session.restore_ranks(list(reversed(states)))
                self.assertGreater(len(session.save()), 4 * COUNT)

        on_threads(1, fewer)

    def test_telemetry_and_a_codec_that_ranks_choose(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            with Communicator.from_environment() as alone, Session(alone, f"auto telemetry={folder}/new") as session:
                session.add("weight", (64, 64))
                session.seal()
                self.assertIn("[64,64] fp32 exact", session.description)
                for _ in range(3):
                    session.all_reduce([array.array("f", [1.0] * 4096)])
                    session.commit()
            with open(f"{folder}/new/steps-0.jsonl", encoding="utf-8") as lines:
                steps = [json.loads(line) for line in lines]
            self.assertEqual([step["step"] for step in steps[1:]], [0, 1, 2])
            with open(f"{folder}/new/trace-0.json", encoding="utf-8") as trace:
                self.assertEqual(sum(event["ph"] == "X" and event["tid"] == 0 for event in json.load(trace)), 3)

    def test_misuse(self) -> None:
        with Communicator.from_environment() as alone:
            self.assertEqual((alone.rank, alone.size), (0, 1))
            for wrong, text in (("int9", "known are exact"), ("int8 x=1", '"x=1": not known')):
                with self.fails(Status.INVALID_ARGUMENT, text):
                    Session(alone, wrong)
            session = sealed(alone, "int8")
            weight, bias = gradient_of(0), array.array("f", [0] * 3)
            with self.fails(Status.INVALID_ARGUMENT, "float64; known are float32"):
                session.add("x", (2,), "float64")
            with self.fails(Status.INVALID_ARGUMENT, "for sorting; known are all_reduce"):
                session.add("x", (2,), "float32", "sorting")
            with self.fails(Status.INVALID_ARGUMENT, "no parameter 5"):
                session.bucket_of(5)
            with self.fails(Status.INVALID_ARGUMENT, "got 1 gradients for 2"):
                session.all_reduce([weight])
            with self.fails(Status.INVALID_ARGUMENT, "of 12 bytes; got 16"):
                session.all_reduce([weight, array.array("f", [0] * 4)])
            with self.fails(Status.INVALID_ARGUMENT, "read-only"):
                session.all_reduce([weight, bytes(12)])
            with self.fails(Status.INVALID_ARGUMENT, "not contiguous"):
                session.all_reduce([weight, memoryview(array.array("f", [0] * 6))[::2]])
            with self.fails(Status.INVALID_ARGUMENT, "there is no bucket 7"):
                session.start(7, [weight])
            with self.fails(Status.INVALID_ARGUMENT, "no such bucket"):
                session.wait(7)
            with self.fails(Status.INVALID_ARGUMENT, 'no scope "ever"'):
                session.statistics("ever")
            session.all_reduce([weight, bias])
            session.close()
            session.close()
            with self.fails(Status.INVALID_ARGUMENT, "handle is null"):
                session.commit()
        with self.fails(Status.INVALID_ARGUMENT, "1 to 1024"):
            Communicator.in_process(0)
        with self.fails(Status.INVALID_ARGUMENT, "rank must be"):
            Communicator.join(2, 2, "file:///tmp/x", "key")

    def test_a_file_of_options(self) -> None:
        with tempfile.TemporaryDirectory() as folder, Communicator.from_environment() as alone:
            path = pathlib.Path(folder) / "session.toml"
            path.write_text('codec = "int4:block=32"\nexact = "head.*"\n', encoding="utf-8")
            with Session(alone, path) as session:
                session.add("head.weight", (64, 64))
                session.add("body.weight", (64, 64))
                session.seal()
                self.assertIn('"head.weight" [64,64] fp32 exact', session.description)
                self.assertIn('"body.weight" [64,64] fp32 int4:block=32', session.description)
            path.write_text("codec = 4\n", encoding="utf-8")
            with self.fails(Status.INVALID_ARGUMENT, "session.toml, line 1: codec must be a string"):
                Session(alone, path)

    def test_gradients_under_way_stay_where_they_are(self) -> None:
        """The caller's list may change and its arrays be forgotten; none may move."""

        def rank(communicator: Communicator) -> None:
            with Session(communicator, "exact") as session:
                session.add("weight", (1 << 20,))
                session.seal()
                for step in range(3):
                    weight = array.array("f", [1.0 + communicator.rank + step]) * (1 << 20)
                    gradients = [weight]
                    session.start(0, gradients)
                    gradients.clear()
                    with self.assertRaises(BufferError):
                        weight.append(0.0)
                    session.wait(0)
                    self.assertEqual((weight[0], weight[-1]), (1.5 + step, 1.5 + step))
                    weight.append(0.0)
                    session.start(0, [array.array("f", [0.0]) * (1 << 20)])
                    session.wait(0)
                    session.commit()

        on_threads(2, rank)

    def test_world_sizes_that_differ(self) -> None:
        """Ranks that were told of other numbers of ranks, and a state of another number: refused on all, naming both."""
        with tempfile.TemporaryDirectory() as folder:
            texts: list[str] = []

            def join(rank: int, size: int) -> None:
                with self.assertRaises(Error) as caught:
                    Communicator.join(rank, size, f"file://{folder}/meeting", "key", timeout=20.0)
                self.assertEqual(caught.exception.status, Status.MISMATCH)
                texts.append(str(caught.exception))

            began = time.monotonic()
            threads = [threading.Thread(target=join, args=each) for each in ((0, 2), (1, 3))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertLess(time.monotonic() - began, 10)
            self.assertEqual(len(texts), 2, "every rank is told")
            for text in texts:
                self.assertIn("2", text)
                self.assertIn("3", text)

        def save(communicator: Communicator) -> bytes:
            with sealed(communicator, "int4:block=32 small=compressed") as session:
                return session.save()

        states = on_threads(3, save)

        def restore(communicator: Communicator) -> None:
            with sealed(communicator, "int4:block=32 small=compressed") as session:
                with self.fails(Status.INVALID_ARGUMENT, "for another number of ranks give the states of all"):
                    session.restore(states[communicator.rank])
                session.all_reduce([gradient_of(0), array.array("f", [0.0] * 3)])

        on_threads(2, restore)

    def test_what_is_no_state_is_refused_on_all_ranks(self) -> None:
        def rank(communicator: Communicator) -> None:
            with sealed(communicator, "int4:block=32 small=compressed") as session:
                state = session.save()
                session.restore(bytearray(state))
                for wrong in (None, 7, "text"):
                    with self.assertRaises(Error):
                        session.restore(wrong if communicator.rank == 1 else state)
                    with self.assertRaises(Error):
                        session.restore_ranks([state, wrong] if communicator.rank == 1 else [state, state])

        on_threads(2, rank)

    def test_texts_that_c_would_cut(self) -> None:
        with Communicator.from_environment() as alone:
            with self.fails(Status.INVALID_ARGUMENT, "has a NUL in it"):
                Session(alone, "int8\0junk")
            with self.fails(Status.INVALID_ARGUMENT, 'for a file give pathlib.Path("session.toml")'):
                Session(alone, "session.toml")
            with Session(alone, "int8") as session:
                with self.fails(Status.INVALID_ARGUMENT, "has a NUL in it"):
                    session.add("a\0b", (4,))
                session.add("weight", (4,))
                with self.assertRaises(Error):
                    session.start(0, [array.array("f", [0.0] * 4)])  # before seal
            for number in (-1, 1 << 64):
                with self.fails(Status.INVALID_ARGUMENT, "is not from 0 to 2**64 - 1"):
                    alone.gather(number)

    def test_as_installed(self) -> None:
        """The files of a wheel, which find their library without being told where it is."""
        with tempfile.TemporaryDirectory() as folder:
            package = pathlib.Path(folder) / "tightwire"
            shutil.copytree(pathlib.Path(tightwire.__file__).parent, package)
            (package / "lib").mkdir(exist_ok=True)
            shutil.copy(os.environ["TIGHTWIRE_LIBRARY"], package / "lib" / "libtightwire.so")
            others = {name: value for name, value in os.environ.items() if name != "TIGHTWIRE_LIBRARY"}
            command = [sys.executable, "-c", "import tightwire; print(tightwire.__file__)"]
            shown = subprocess.run(
                command, capture_output=True, text=True, env={**others, "PYTHONPATH": folder}, cwd=folder, check=True
            )
            self.assertTrue(shown.stdout.startswith(folder), shown.stdout)
            told = subprocess.run(
                [sys.executable, "-m", "tightwire", "info"], capture_output=True, text=True,
                env={**others, "PYTHONPATH": folder}, cwd=folder, check=True,
            )
            self.assertIn("wire version", told.stdout)

    def test_ranks_that_differ(self) -> None:
        def rank(communicator: Communicator) -> None:
            sealed(communicator, ["int8", "int4"][communicator.rank])

        with self.fails(Status.MISMATCH, "int4"):
            on_threads(2, rank)

    def test_a_rank_that_never_comes(self) -> None:
        with tempfile.TemporaryDirectory() as folder, self.fails(Status.TIMEOUT, "rank 1"):
            Communicator.join(0, 2, f"file://{folder}/meeting", "key", timeout=0.3)

    def test_the_command(self) -> None:
        def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
            command = [sys.executable, "-m", "tightwire", *arguments]
            return subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)

        shown = run("info")
        self.assertEqual(shown.returncode, 0)
        self.assertIn(f"tightwire {tightwire.__version__}, wire version", shown.stdout)
        self.assertIn("usage", run("inform").stderr)


if __name__ == "__main__":
    unittest.main()
