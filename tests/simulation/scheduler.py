"""Time, threads and locks of a simulation: greenlets in one thread, one of which runs at a time.

A greenlet gives way only at seams: at locks, events, sleeps, and wherever the code meets files, the API server or
kubelet. There the seed decides who goes on, and how late it is. Time passes while everybody waits, and at seams now and
then, as on a busy machine.
"""

from __future__ import annotations

import math
import random
import select
from collections.abc import Callable, Collection
from typing import Any, Final

import greenlet

from dra_driver.util.runtime import Runtime

EPOCH: Final = 1_800_000_000.0
"""Unix time at the start."""
SWITCH: Final = 0.3
"""How often a seam lets somebody else go on who could."""
SLOW: Final = 0.005
"""How often time passes at a seam for everybody, as on a busy machine."""
STARVES: Final = (0.0, 0.02, 0.1)
"""How often who is at a seam does not go on before somebody else was there, too; one of these in each history."""
STARVE_SECONDS: Final = (1.0, 5.0, 15.0)
"""At most; then it goes on whatever happens."""
STEP_SECONDS: Final = 1e-6
"""What a turn takes: who waits for the rest of a moment would never see its end."""
MOST_STEPS: Final = 400_000
"""Of one history; more means that somebody waits without a wait."""


class Killed(greenlet.GreenletExit):
    """Ends what an instance that was killed would do while its stack is cleared: none of it has an effect."""


class Life:
    """What lives and dies together: the threads of one process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True


class Task:
    """A thread."""

    def __init__(self, scheduler: Scheduler, work: Callable[[], object], name: str, life: Life) -> None:
        self._scheduler = scheduler
        self.name, self.life = name, life
        self.ready: Callable[[], bool] | None = None
        """What it waits for; None: nothing but the time."""
        self.deadline = 0.0
        self.begun = self.done = False
        self.greenlet = greenlet.greenlet(lambda: scheduler.perform(self, work), parent=scheduler.hub)

    def start(self) -> None:
        if self.begun:
            raise RuntimeError("threads can only be started once")
        self.begun = True
        self._scheduler.tasks.append(self)
        self._scheduler.pause()

    def join(self, timeout: float | None = None) -> None:
        self._scheduler.wait(lambda: self.done, timeout)

    def is_alive(self) -> bool:
        return self.begun and not self.done


class Scheduler:
    """Who goes on, by a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._starve = self.random.choice(STARVES)
        self.events = 0
        """Of the history, so far."""
        self.fair = False
        """Whether everybody gets time, and nobody starves."""
        self.held: dict[str, int] = {}
        """Tasks that get no time, by name: from so many of their seams on, until they are in here no more."""
        self.clock = 0.0
        """Seconds since the start."""
        self.boot = 1000.0
        """Seconds between boot and start."""
        self.tasks: list[Task] = []
        self.failures: list[BaseException] = []
        self.steps = 0
        self.hub = greenlet.getcurrent()
        self._dead: list[Task] = []
        self.world = Life("world")
        self._current: Task | None = None

    def runtime(self) -> Runtime:
        """What ``dra_driver.util.runtime`` is to use."""
        return Runtime(
            now=lambda: EPOCH + self.clock,
            monotonic=lambda: self.boot + self.clock,
            uptime=lambda: self.boot + self.clock,
            sleep=self.sleep,
            lock=lambda: Lock(self),
            condition=lambda: Condition(self),
            event=lambda: Event(self),
            thread=lambda work, name: Task(self, work, name, self.life),
            current_thread=lambda: self._current,
            poll=self._poll,
        )

    @property
    def current(self) -> object:
        """Who is running: a task, or who lets the tasks run."""
        return self._current or self

    @property
    def name(self) -> str:
        """Of the task that is running; "" outside of all tasks."""
        return self._current.name if self._current is not None else ""

    @property
    def life(self) -> Life:
        """Of who is running; of the world outside of any task."""
        return self._current.life if self._current is not None else self.world

    def spawn(self, work: Callable[[], object], name: str, life: Life | None = None) -> Task:
        """A task that has begun."""
        task = Task(self, work, name, life or self.world)
        task.begun = True
        self.tasks.append(task)
        return task

    def check(self) -> None:
        """Raise Killed in what belongs to somebody dead."""
        if not self.life.alive:
            raise Killed

    def pause(self, trace: Callable[[], object] | None = None) -> None:
        """A seam: somebody else may go on, and it may get late.

        ``trace`` is another value when somebody else was at this seam; without it, an event counts.
        """
        self.check()
        if self._current is None:
            return
        self._stand_still(self._current)
        draw = self.random.random()
        if draw < SLOW:
            self.clock += self.random.choice((0.01, 0.3, 2.0))
        elif draw < SLOW + self._starve and not self.fair:
            self._starve_until_a_change(trace or self._events)
        elif draw < SLOW + self._starve + SWITCH:
            self._give_way(None, self.clock)

    def _stand_still(self, task: Task) -> None:
        while task.name in self.held:
            if self.held[task.name] > 0:
                self.held[task.name] -= 1
                return
            self._give_way(lambda: self.held.get(task.name, 1) > 0, math.inf)

    def _events(self) -> int:
        return self.events

    def _starve_until_a_change(self, trace: Callable[[], object]) -> None:
        """Get no time until somebody else has been here: what was read before is old then."""
        before = trace()
        self._give_way(lambda: self.fair or trace() != before, self.clock + self.random.choice(STARVE_SECONDS))
        if not self.fair and self.random.random() < 0.5:
            self._give_way(None, self.clock + self.random.choice((0.0, 0.01, 0.5, 3.0)))

    def sleep(self, seconds: float) -> None:
        """Wait."""
        self.wait(None, max(0.0, seconds))

    def wait(self, ready: Callable[[], bool] | None, timeout: float | None = None) -> bool:
        """Wait until something holds, at most so many seconds; whether it does.

        Outside of all tasks, these go on meanwhile.
        """
        self.check()
        deadline = math.inf if timeout is None or timeout < 0 else self.clock + timeout
        if self._current is None:
            return self.run(ready, deadline)
        if ready is not None and ready() and self.random.random() >= SWITCH:
            return True
        self._give_way(ready, deadline)
        return ready is not None and ready()

    def _give_way(self, ready: Callable[[], bool] | None, deadline: float) -> None:
        task = self._current
        assert task is not None
        task.ready, task.deadline = ready, deadline
        self.hub.switch()
        if not task.life.alive:
            raise Killed

    def run(self, until: Callable[[], bool] | None, deadline: float) -> bool:
        """Let all tasks go on until something holds, or the time has come; whether it holds."""
        while True:
            if until is not None and until():
                return True
            able = [task for task in self.tasks if task.deadline <= self.clock or (task.ready and task.ready())]
            if able:
                self._step(self.random.choice(able))
                if self.clock < deadline:
                    continue
            following = min((task.deadline for task in self.tasks), default=math.inf)
            if self.clock >= deadline or (following == math.inf and deadline == math.inf):
                return until is not None and until()
            self.clock = max(self.clock, min(following, deadline))

    def _step(self, task: Task) -> None:
        self.steps += 1
        self.clock += STEP_SECONDS
        if self.steps > MOST_STEPS:
            raise AssertionError(f"no end is in sight; {task.name} of {task.life.name} was to go on")
        task.ready, task.deadline = None, math.inf
        self._current = task
        try:
            task.greenlet.switch()
        finally:
            self._current = None
        if task.done and task in self.tasks:
            self.tasks.remove(task)
        if self.failures:
            raise self.failures[0]

    def perform(self, task: Task, work: Callable[[], object]) -> None:
        """What a task does."""
        try:
            work()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - raised by who runs the tasks
            error.add_note(f"in {task.name} of {task.life.name}")
            self.failures.append(error)
        finally:
            task.done = True

    def kill(self, life: Life) -> None:
        """End a life where it stands: nothing is unwound now, and what is later has no effect."""
        life.alive = False
        self._dead += [task for task in self.tasks if task.life is life]
        self.tasks = [task for task in self.tasks if task.life is not life]

    def close(self) -> None:
        """Clear the stacks of all tasks; nothing of that has an effect."""
        for task in self.tasks:
            task.life.alive = False
        for task in [*self.tasks, *self._dead]:
            self._current = task
            if task.greenlet:
                task.greenlet.throw(Killed)
            self._current = None
        self.tasks, self._dead = [], []

    def _poll(self, readable: Collection[int], urgent: Collection[int], timeout: float | None) -> set[int]:
        """Descriptors of this process; nothing is ever urgent."""
        del urgent
        poll = select.poll()
        for descriptor in readable:
            poll.register(descriptor, select.POLLIN)

        def ready() -> bool:
            return bool(poll.poll(0))

        self.wait(ready, timeout)
        return {descriptor for descriptor, _ in poll.poll(0)}


class Lock:
    """As ``threading.Lock``."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._taken = False
        self._turns = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self._scheduler.pause(self._trace)
        if self._taken and not (blocking and self._scheduler.wait(lambda: not self._taken, timeout)):
            return False
        self._taken = True
        self._turns += 1
        return True

    def release(self) -> None:
        if not self._scheduler.life.alive:
            return
        if not self._taken:
            raise RuntimeError("release unlocked lock")
        self._taken = False
        self._turns += 1
        self._scheduler.pause(self._trace)

    def _trace(self) -> tuple[int, bool]:
        return self._turns, self._taken

    def locked(self) -> bool:
        return self._taken

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition:
    """As ``threading.Condition`` with a lock of its own, which is taken again by who has it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._owner: object = None
        self._depth = 0
        self._turns = 0
        self._notices = 0

    def __enter__(self) -> bool:
        me = self._scheduler.current
        if self._owner is not me:
            self._scheduler.pause(self._trace)
            self._take(me)
        self._depth += 1
        return True

    def __exit__(self, *_: object) -> None:
        if not self._scheduler.life.alive:
            return
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._turns += 1
            self._scheduler.pause(self._trace)

    def _trace(self) -> tuple[int, bool]:
        return self._turns, self._owner is None

    def wait(self, timeout: float | None = None) -> bool:
        me, depth, notices = self._owner, self._depth, self._notices
        self._owner, self._depth = None, 0
        notified = self._scheduler.wait(lambda: self._notices != notices, timeout)
        self._take(me)
        self._depth = depth
        return notified

    def _take(self, who: object) -> None:
        while self._owner is not None:
            self._scheduler.wait(lambda: self._owner is None)
        self._owner = who

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        end = math.inf if timeout is None else self._scheduler.clock + timeout
        while not (result := predicate()):
            left = None if end == math.inf else end - self._scheduler.clock
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify_all(self) -> None:
        self._notices += 1


class Event:
    """As ``threading.Event``."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._happened = False

    def is_set(self) -> bool:
        return self._happened

    def set(self) -> None:
        self._happened = True
        self._scheduler.pause()

    def clear(self) -> None:
        self._happened = False

    def wait(self, timeout: float | None = None) -> bool:
        return self._scheduler.wait(self.is_set, timeout)
