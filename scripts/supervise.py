#!/usr/bin/env python3
"""Runs a training command for a month: restarts it when it fails, and writes down what happened.

    python3 scripts/supervise.py -- ./train_gpt -i 'data/train_*.bin' -o runs/d12 -e d12
    python3 scripts/supervise.py --follow tensorboard -- mpirun --host a:8,b:8,c:8 ./train_gpt ... -o runs/d12

COMMAND starts train_gpt, with any launcher in front. Its flags come last, because supervise.py adds some at the end:
--resume auto, and those that a restart needs. Start it once, outside mpirun and srun. dev/guide/supervising.md lists
what it does after which exit code. RUN/lives.jsonl has a line for every life of the run; the same command continues
after a reboot. Ctrl-C, SIGTERM and SIGUSR1 stop the run after a checkpoint (exit code 75); a second one stops it at
once.

Hooks are shell commands. They find SUPERVISE_EVENT, _RUN, _LIFE, _EXIT_CODE, _STEP and _REASON in their environment.
COMMAND finds SUPERVISE_LIFE.
"""

import argparse
import collections
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, field

from runs import RunError, is_going_on, printable, read_info, read_object, read_records, start, without_repeats

SCRIPTS = os.path.dirname(os.path.abspath(__file__))
OK, FAILURE, NUMBERS, COMMUNICATION, STOPPED, NOT_FOUND = 0, 1, 6, 7, 75, 127  # llmc/base/error.h; the shell's
LAUNCHERS = ("mpirun", "mpiexec", "run_mpirun.sh", "srun")  # they pass SIGUSR1 on
HOSTS = ("--host", "-host", "-H", "--hosts", "-hosts")
RANKS = ("-np", "--np", "-n", "--n", "-c", "--ranks")
# Options of mpirun and mpiexec (Open MPI's and MPICH's) that have two values or none. All others have one.
TWO_VALUES = {"mca", "gmca", "omca", "pmca", "prtemca", "pmixmca", "env", "genv"}
NO_VALUE = {
    "allow-run-as-root", "bind-to-core", "bind-to-none", "bind-to-socket", "bycore", "bynode", "byslot", "bysocket",
    "continuous", "debug-daemons", "disable-auto-cleanup", "disable-hostname-propagation", "disable-recovery",
    "display-allocation", "display-map", "display-topo", "do-not-launch", "do-not-resolve", "enable-recovery",
    "envall", "envnone", "genvall", "genvnone", "get-stack-traces", "index-argv-by-rank", "info", "l",
    "leave-session-attached", "merge-stderr-to-stdout", "nolocal", "nooversubscribe", "noprefix", "novm", "oversubscribe",
    "pernode", "prepend-rank", "print-all-exitcodes", "q", "quiet", "report-bindings", "s", "tag-output",
    "timestamp-output", "use-hwthread-cpus", "v", "verbose", "xml"}
ONCE = ("--overwrite", "--rewind", "--skip-data", "--new-data")  # flags that every life would repeat
MOST_REWINDS = 2
LONGEST_WAIT = 900  # seconds before a restart
# What names the host of a rank that was lost, in the words of train_gpt, mpirun and srun.
LOST = re.compile(r"rank \d+ on (\S+) is gone|process rank \d+ with PID \d+ on node (\S+) exited on|"
                  r"srun: error: (\S+): tasks? [\d,-]+: (?:Killed|Aborted|Segmentation fault|Bus error)")


def say(text):
    print(f"supervise: {printable(text)}", file=sys.stderr, flush=True)


def now():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def last_words(lines):
    """The last message of the program, or else of its launcher."""
    texts = [line for line in lines if re.search(r"\w", line)]
    return ([line for line in texts if re.search(r"train_gpt: |rank \d+[ :]", line)] or texts or ["no message"])[-1]


class Command:
    """The command that is supervised."""

    def __init__(self, words):
        self.words = words
        self.launcher = next((i for i, word in enumerate(words) if os.path.basename(word) in LAUNCHERS), None)
        self.program = self.find_program()
        self.out = self.value("-o", "--out")
        if not self.out:
            raise ValueError("COMMAND needs --out DIR: a run without it saves nothing to restart from")
        if self.launched_by("run_mpirun.sh"):
            self.out = os.path.join(os.path.dirname(SCRIPTS), self.out)  # where that script goes
        for word in words:
            if word.partition("=")[0] in ONCE:
                raise ValueError(f"COMMAND has {word}, which every restart would repeat; run it once by hand, without "
                                 "supervise.py, and leave it out here")
        resume = self.value("-y", "--resume")
        if resume not in (None, "auto", "latest"):
            raise ValueError(f"COMMAND has --resume {resume}; begin that run by hand, up to its first "
                             "checkpoint, and then supervise it with --resume auto")
        file = read_object(self.value("--config") or "") or {}  # a file of flags, or a run.json
        in_file = (file.get("config") or file).get("max-minutes")
        self.minutes = float(self.value("--max-minutes") or in_file or 0)

    def launched_by(self, *names):
        return self.launcher is not None and os.path.basename(self.words[self.launcher]) in names

    def find_program(self):
        """The place of the first word after the launcher's options. Some of these have the names of train_gpt's flags."""
        if self.launcher is None:
            return 0
        if self.launched_by("run_mpirun.sh"):
            return self.words.index("--") if "--" in self.words else len(self.words)
        place = self.launcher + 1
        while place < len(self.words) and self.words[place].startswith("-"):
            name, equals, _ = self.words[place].lstrip("-").partition("=")
            values = 0 if equals or name in NO_VALUE else 2 if name in TWO_VALUES else 1
            for word in self.words[place + 1:place + 1 + values]:  # an unknown option may have no value
                if os.path.basename(word).startswith("train_gpt"):
                    return self.words.index(word, place)
            place += 1 + values
        return place

    def value(self, *names, words=None):
        """The value of a flag, the last one if it is repeated, or None."""
        found, words = None, self.words if words is None else words
        for i, word in enumerate(words):
            name, equals, value = word.partition("=")
            if name in names and (equals or i + 1 < len(words)):
                found = value if equals else words[i + 1]
        return found

    def without(self, left_out):
        """The command without these hosts, or None if it has no other hosts."""
        words = list(self.words)
        if self.launched_by("srun"):
            nodes = int(os.environ.get("SLURM_JOB_NUM_NODES", 0))
            options = " ".join(words[self.launcher + 1:self.program])
            wanted = int((re.findall(r"(?<!\S)(?:--nodes[ =]|-N *)(\d+)", options) or [nodes])[-1])
            words.insert(self.launcher + 1, "--exclude=" + ",".join(left_out))
            return words if nodes - len(left_out) >= wanted else None
        if self.launcher is None:
            return None
        options = words[self.launcher + 1:self.program]
        hosts = (self.value(*HOSTS, words=options) or "").split(",")
        kept = [host for host in hosts if host.partition(":")[0] not in left_out]
        if not kept or len(kept) == len(hosts):
            return None
        slots = sum(int(host.partition(":")[2] or 1) for host in kept)
        ranks = min(slots, int(self.value(*RANKS, words=options) or slots))
        for names, new in ((HOSTS, ",".join(kept)), (RANKS, str(ranks))):
            for i, word in enumerate(options, self.launcher + 1):
                if word in names:
                    words[i + 1] = new
                elif word.partition("=")[0] in names:
                    words[i] = word.partition("=")[0] + "=" + new
        return words


@dataclass
class State:
    """The facts about earlier lives that a restart needs. lives.jsonl keeps them over a reboot."""

    life: int = 0
    failures: int = 0  # lives in a row without a new checkpoint
    rewinds: int = 0
    blamed: dict = field(default_factory=dict)  # {host: lives in which it lost a rank}
    left_out: list = field(default_factory=list)
    rewind: dict = field(default_factory=dict)  # the last: to a step, skipping data; lives of the run before it


class RunFiles:
    """The files in the run's directory."""

    def __init__(self, path):
        self.path = path

    def file(self, name):
        return os.path.join(self.path, name)

    def checkpoints(self):
        """The steps of the complete checkpoints, in order."""
        parent = self.file("checkpoints")
        names = os.listdir(parent) if os.path.isdir(parent) else []
        return sorted(int(found[1]) for name in names if (found := re.fullmatch(r"step_(\d+)", name))
                      and os.path.exists(os.path.join(parent, name, "manifest.json")))

    def resumes(self):
        """The steps from which the run was resumed."""
        return [entry.get("step", 0) for entry in read_info(self.path).get("resumed", [])]

    def last_step(self):
        try:
            with open(self.file("metrics.jsonl"), "rb") as file:
                file.seek(max(0, os.path.getsize(file.name) - (1 << 20)))
                steps = re.findall(rb'^\{"step":(\d+),"loss"', file.read(), re.MULTILINE)
        except OSError:
            return 0
        return int(steps[-1]) if steps else 0

    def end(self):
        """How the records end: (corruption or None, first of the last steps if they diverged or None, last step)."""
        try:
            records = without_repeats(read_records(self.file("metrics.jsonl")))
        except RunError:
            return None, None, 0
        steps = [r for r in records if "loss" in r]
        if not steps:
            return None, None, 0
        corruption, last, first = records[-1].get("corruption"), steps[-1]["step"], None
        if any(r["step"] == last and "val_loss" in r and r["val_loss"] is None for r in records):
            first = last
        for before, step in reversed(list(zip([{}, *steps], steps))):
            if "nonfinite" not in step and step.get("skipped", 0) <= before.get("skipped", 0):
                break
            first = step["step"]
        return corruption, first, last


class Supervisor:
    def __init__(self, args, command):
        self.args, self.command = args, command
        self.files = RunFiles(self.command.out)
        if is_going_on(self.command.out):
            raise ValueError(f"the run in {self.command.out} is going on already; stop that first")
        os.makedirs(self.command.out, exist_ok=True)
        self.state = self.remembered()
        self.began = time.monotonic()
        self.asked, self.process, self.follower, self.alerts = None, None, None, set()
        self.wake = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
                signal.signal(number, self.stop)

    def remembered(self):
        """The state after the last life, unless that one ended for good: then somebody has looked at it since."""
        try:
            with open(self.files.file("lives.jsonl"), "r+", encoding="utf-8", errors="replace") as file:
                text = file.read()
                if text and not text.endswith("\n"):
                    file.write("\n")  # the next line shall not continue one that was cut short
        except FileNotFoundError:
            return State()
        for number, line in reversed(list(enumerate(text.splitlines(), 1))):
            try:
                last = json.loads(line)
                state = State(**last["state"])
                return state if last["action"] in ("restart", "rewind", "stopped") else State(life=state.life)
            except (ValueError, LookupError, TypeError):
                say(f"{file.name}:{number} is damaged; the line before it counts")
        return State()

    def write_down(self, life):
        try:
            with open(self.files.file("lives.jsonl"), "a", encoding="utf-8") as file:
                file.write(json.dumps(life) + "\n")
        except OSError as error:
            say(f"lives.jsonl cannot be written ({error.strerror}), so it lacks life {life['life']}")

    def stop(self, number, _):
        """Passes on a request to stop. The first is SIGUSR1 to mpirun and srun, which kill their ranks on SIGTERM."""
        first, self.asked = self.asked is None, signal.Signals(number).name
        self.wake.set()
        if self.process:
            self.process.send_signal(signal.SIGUSR1 if first and self.command.launcher is not None else signal.SIGTERM)

    def event(self, event, reason, code=OK, step=0):
        say(f"start: {reason}" if event == "start" else f"life {self.state.life}, step {step}: {event}: {reason}")
        if self.args.on_event:
            self.hook(self.args.on_event, event, reason, code, step)

    def hook(self, command, event, reason="", code=OK, step=0):
        """The exit code of a hook. One that hangs ends after ten minutes."""
        facts = {"EVENT": event, "RUN": self.command.out, "LIFE": self.state.life, "EXIT_CODE": code, "STEP": step,
                 "REASON": reason}
        process = subprocess.Popen(command, shell=True, start_new_session=True, stdin=subprocess.DEVNULL, env={
            **os.environ, **{f"SUPERVISE_{name}": str(value) for name, value in facts.items()}})
        try:
            found = process.wait(600)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            found = 128 + signal.SIGKILL
        if found:
            say(f"the hook {command!r} ended with exit code {found}")
        return found

    def follow(self, *more):
        sinks = [word for sink in self.args.follow for word in (f"--{sink}".split("=", 1))]
        follower = subprocess.Popen([sys.executable, os.path.join(SCRIPTS, "follow.py"), self.command.out, *sinks, *more],
                                    start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.reader = threading.Thread(target=self.pass_on_alerts, args=(follower.stdout,), daemon=True)
        self.reader.start()
        return follower

    def pass_on_alerts(self, lines):
        """Prints what the follower prints. Its alerts are events, each of them once: a follower that is started again
        begins with those that an earlier one has printed."""
        for line in lines:
            found = re.match(r"step (\d+): ", line)
            if found and line in self.alerts:
                continue
            print(line, end="", flush=True)
            if found:
                self.alerts.add(line)
                if self.args.on_event:
                    self.hook(self.args.on_event, "alert", line.strip(), step=int(found[1]))

    def start_follower(self):
        if self.args.follow and (self.follower is None or self.follower.poll() is not None):
            self.follower = self.follow("--patience", "3600")  # it ends if this process is killed, and no run follows

    def end_follower(self):
        """One that does not wait any longer sends what is missing."""
        if self.follower:
            self.follower.send_signal(signal.SIGINT)
            self.follower.wait()
            self.reader.join()
            self.follow("--patience", "0").wait()
            self.reader.join()

    def flags(self):
        """The flags of the next life."""
        flags = ["--resume", "auto"]
        if self.command.minutes:
            flags += ["--max-minutes", f"{max(1e-9, self.minutes_left()):.6g}"]
        if rewind := self.state.rewind:
            newer, resumes = [step for step in self.files.checkpoints() if step > rewind["to"]], self.files.resumes()
            has_begun = len(resumes) > rewind["resumes"] and rewind["to"] in resumes[rewind["resumes"]:]
            if newer and not has_begun:
                flags += ["--rewind", str(len(newer))]
            if not (newer and has_begun):  # its checkpoints know where the data goes on
                flags += ["--skip-data", str(rewind["skip"])]
        return flags

    def minutes_left(self):
        return self.command.minutes - (time.monotonic() - self.began) / 60

    def live(self, flags):
        """One life of the run: its exit code and the last lines of its standard error."""
        if self.args.before_resume and (code := self.hook(self.args.before_resume, "before_resume")):
            return FAILURE, [f"--before-resume ended with exit code {code}"]
        words = self.state.left_out and self.command.without(self.state.left_out) or self.command.words
        lines = collections.deque(maxlen=200)
        try:
            self.process = subprocess.Popen([*words, *flags], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                            start_new_session=True,
                                            env={**os.environ, "SUPERVISE_LIFE": str(self.state.life)})
        except OSError as error:
            return NOT_FOUND, [f"{words[0]}: {error.strerror}"]
        if self.asked:
            self.process.send_signal(signal.SIGTERM)

        def pass_on():
            for line in self.process.stderr:
                lines.append(line.decode(errors="replace").strip())
                sys.stderr.buffer.write(line)
                sys.stderr.buffer.flush()

        reader = threading.Thread(target=pass_on, daemon=True)
        reader.start()
        code = self.process.wait()
        self.process = None
        reader.join(10)  # a child of a hook may hold the pipe
        return code if code >= 0 else 128 - code, list(lines)

    def blame(self, lines):
        """Counts the host that lost a rank, and leaves it out the second time."""
        host = next((next(filter(None, found.groups())) for line in lines if (found := LOST.search(line))), None)
        if host is None:
            return
        state = self.state
        state.blamed[host] = state.blamed.get(host, 0) + 1
        if state.blamed[host] < 2 or host in state.left_out:
            return
        if self.command.without([*state.left_out, host]):
            state.left_out.append(host)
            self.event("leave_out", f"{host} lost a rank in {state.blamed[host]} lives")
        else:
            say(f"{host} lost a rank in {state.blamed[host]} lives, and COMMAND has no host to spare")

    def rewind(self, lines):
        """(action, reason) after exit code 6."""
        corruption, first, last = self.files.end()
        if corruption:
            return "stop", f"silent data corruption: {corruption}"
        if first is None:
            return "stop", f"bad numbers that did not diverge: {last_words(lines)}"
        what, state = f"the numbers diverged in steps {first} to {last}", self.state
        if state.rewinds == MOST_REWINDS:
            return "stop", f"{what}, after {MOST_REWINDS} rewinds"
        before, good = state.rewind.get("to", 0), [step for step in self.files.checkpoints() if step < first]
        good = [step for step in good if step != before]
        if not good:
            return "stop", f"{what}, and there is no checkpoint to go back to"
        # The data of this life was ahead of its steps by the last skip. Only checkpoints after that rewind know it.
        skip = last - good[-1] + (state.rewind["skip"] if good[-1] < before else 0)
        state.rewinds += 1
        state.rewind = {"to": good[-1], "skip": skip, "resumes": len(self.files.resumes())}
        return "rewind", f"{what}; back to step {good[-1]}, without the data of the {skip} steps after it"

    def decide(self, code, lines, step, made_progress):
        """(action, reason) after a life."""
        name = f" ({signal.Signals(code - 128).name})" if code - 128 in set(signal.Signals) else ""
        reason = f"exit code {code}{name}" + ("" if code in (OK, STOPPED) else f": {last_words(lines)}")
        if code == OK:
            if step == 0:
                return "stop", f"{reason}, but {self.command.out} has no step of a run: is COMMAND train_gpt?"
            return "done", reason
        if self.asked:
            return "stopped", f"asked by {self.asked}"
        if self.command.minutes and self.minutes_left() <= 0:
            return "stopped", "--max-minutes reached"
        if code == NUMBERS:
            return self.rewind(lines)
        if code not in (FAILURE, COMMUNICATION, STOPPED) and code <= 128:
            return "stop", reason
        self.state.failures = 0 if made_progress else self.state.failures + 1
        if self.state.failures >= self.args.max_failures:
            return "stop", f"{self.args.max_failures} lives in a row without a new checkpoint; the last: {reason}"
        self.blame(lines)
        return "restart", reason

    def supervise(self):
        """The exit code: that of the last life, 1 instead of 0 if it made no step, or 75 if the run can go on."""
        self.event("start", shlex.join(self.command.words))
        while True:
            self.state.life += 1
            self.start_follower()
            start, flags = now(), self.flags()
            newest = self.state.rewind["to"] if "--rewind" in flags else max(self.files.checkpoints(), default=0)
            code, lines = self.live(flags)
            until = time.monotonic() + 60
            while is_going_on(self.command.out) and time.monotonic() < until:  # ranks that a launcher left behind
                time.sleep(0.1)
            step, checkpoints = self.files.last_step(), self.files.checkpoints()
            action, reason = self.decide(code, lines, step, max(checkpoints, default=0) > newest)
            self.write_down({
                "life": self.state.life, "start": start, "end": now(), "exit_code": code, "step": step,
                "checkpoint": max(checkpoints, default=None), "flags": flags, "action": action, "reason": reason,
                "state": asdict(self.state)})
            self.event(action, reason, code, step)
            if action == "restart":
                self.wake.wait(min(LONGEST_WAIT, self.args.back_off * 2**self.state.failures))
            if action not in ("restart", "rewind") or self.asked:
                self.end_follower()
                if action == "stop" and code == OK:
                    return FAILURE
                return code if action in ("done", "stop") else STOPPED


def main(argv=None):
    opening, *_, closing = __doc__.split("\n\n", 2)
    parser = argparse.ArgumentParser(description=opening, epilog=closing, usage="supervise.py [options] -- COMMAND ...",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--follow", action="append", default=[], metavar="NAME[=VALUE]",
                        help="start scripts/follow.py with --NAME VALUE: tensorboard, wandb=PROJECT, 'alert=loss>11'")
    parser.add_argument("--before-resume", metavar="CMD", help="runs before every life, to fetch checkpoints, say")
    parser.add_argument("--on-event", metavar="CMD",
                        help="runs at start, restart, rewind, leave_out, alert (of --follow alert=...), stop (gives up), stopped "
                             "(asked) and done")
    parser.add_argument("--max-failures", type=int, default=5, metavar="N",
                        help="give up after N lives in a row without a new checkpoint; default: 5")
    parser.add_argument("--back-off", type=float, default=10, metavar="SECONDS",
                        help="wait before a restart, doubled after each life without a new checkpoint; default: 10")
    words = sys.argv[1:] if argv is None else argv
    if "--" not in words and not {"-h", "--help"} & set(words):
        parser.error("put -- and COMMAND behind the options (--help)")
    end = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:end])
    if int(os.environ.get("OMPI_COMM_WORLD_SIZE", 1)) > 1 or int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
        parser.error("start supervise.py once, outside mpirun and srun, which belong in COMMAND")
    try:
        supervisor = Supervisor(args, Command(words[end + 1:]))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    return supervisor.supervise()


if __name__ == "__main__":
    start(main)
