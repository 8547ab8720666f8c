"""Shared by the parts of a GPU session: finding programs and libraries, running them with a time limit, and result
files that are complete after every item, so that a session can be stopped anywhere and continued.
"""

import datetime
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
STOPPED = 75  # exit code of a program that ended at its own limit, with its results saved
KILLED = -1  # that of a program that had not ended at its limit
# Weights and data are not results.
NOT_ARCHIVED = (".safetensors", ".bin", ".xz", ".tar.gz", ".png")


class Finished:
    """The result of a program: its exit code or KILLED, output and seconds."""

    def __init__(self, command, code, output, seconds):
        self.command, self.code, self.output, self.seconds = command, code, output, seconds

    def tail(self, characters=1500):
        return self.output[-characters:]


def run(command, limit, env=None, log=None):
    """Runs a command to its end, or for `limit` seconds; then its process group is killed."""
    command = [str(part) for part in command]
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                               cwd=ROOT, env={**os.environ, **(env or {})}, text=True, errors="replace",
                               start_new_session=True)
    try:
        output, _ = process.communicate(timeout=max(1, limit))
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        output, _ = process.communicate()
        code = KILLED
    if log:
        os.makedirs(os.path.dirname(log), exist_ok=True)
        with open(log, "w", encoding="utf-8") as file:
            file.write(f"$ {' '.join(command)}\n{output}\nexit code {code}\n")
    return Finished(" ".join(command), code, output, round(time.monotonic() - start, 2))


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_json(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def read_records(run_directory):
    """The lines of a run's metrics.jsonl."""
    with open(os.path.join(run_directory, "metrics.jsonl"), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def found_by_inspect(output):
    """The JSON that `train_gpt inspect --json` prints."""
    return json.loads(output[output.index("{"):output.rindex("}") + 1])


def check_card_command(session, model, precision):
    """check_card for a run of this model and precision."""
    shape = ["--layers", 2, "--channels", 64, "--heads", 2, "-b", 2, "-t", 64, "--vocab", 257] if session.dry else \
        ["-e", model, "-b", 16]
    return [session.program("check_card"), *shape, "--precision", precision]


def found_by_check_card(output):
    """The lines that name what is wrong."""
    return [line for line in output.splitlines() if line.startswith("WRONG: ")]


def counts_of_doctest(text):
    found = re.search(r"test cases:\s*(\d+) \|\s*(\d+) passed \|\s*(\d+) failed", text)
    return {"passed": int(found[2]), "failed": int(found[3])} if found else {}


def write_json(path, value):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1, allow_nan=False)
        file.write("\n")
    os.replace(path + ".new", path)


# ---- the machine ---------------------------------------------------------------------------------------------------


def library_directories():
    """Directories that may contain CUDA's libraries, from a toolkit or from Python packages."""
    found = []
    for pattern in ("/usr/local/cuda*/lib64", "/usr/local/cuda*/lib", "/usr/local/cuda*/targets/x86_64-linux/lib",
                    "/usr/local/cuda*/extras/CUPTI/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/local/nvidia/lib64"):
        found += sorted(glob.glob(pattern), reverse=True)
    pythons = [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]
    other = shutil.which("python3")
    if other and os.path.realpath(other) != os.path.realpath(sys.executable):
        command = [other, "-c", "import sys; print(*sys.path, sep='\\n')"]
        listed = subprocess.run(command, capture_output=True, text=True, check=False)
        pythons += [line for line in listed.stdout.splitlines() if line.endswith("-packages")]
    for packages in dict.fromkeys(pythons):
        found += sorted(glob.glob(os.path.join(packages, "nvidia", "*", "lib")), reverse=True)
    return found


def find_library(name, directories):
    """The first file with this name, or with this name and a version."""
    for directory in directories:
        for path in sorted(glob.glob(os.path.join(directory, name + "*"))):
            return path
    return None


def missing_libraries(program, env):
    result = subprocess.run(["ldd", program], capture_output=True, text=True, env={**os.environ, **env}, check=False)
    return re.findall(r"(\S+) => not found", result.stdout)


def loader_environment(programs, place):
    """Returns an LD_LIBRARY_PATH with which all programs find their libraries, and the libraries that are still
    missing. It has no more directories than needed, because a machine's own libraries fit each other.
    """
    directories, path = library_directories() + [os.path.join(place, "lib")], []
    if os.environ.get("LD_LIBRARY_PATH"):
        path.append(os.environ["LD_LIBRARY_PATH"])
    for _ in range(4):  # a library that was found may need others
        env = {"LD_LIBRARY_PATH": os.pathsep.join(path)} if path else {}
        missing = sorted({name for program in programs for name in missing_libraries(program, env)})
        added = [os.path.dirname(library) for name in missing if (library := find_library(name, directories))]
        added = [directory for directory in dict.fromkeys(added) if directory not in path]
        if not added:
            return env, missing
        path += added
    return env, missing


def find_tool(name):
    found = shutil.which(name) or next(iter(sorted(glob.glob(f"/usr/local/cuda*/bin/{name}"), reverse=True)), None)
    return found or next(iter(sorted(glob.glob(f"/opt/nvidia/*/*/{name}"), reverse=True)), None)


GPU_FIELDS = ("name", "driver_version", "memory.total", "clocks.sm", "clocks.mem", "clocks.max.sm", "power.limit",
              "power.draw", "temperature.gpu", "compute_cap")


def nvidia_smi():
    """The path of nvidia-smi, or None."""
    return shutil.which("nvidia-smi") or find_library("nvidia-smi", ["/usr/local/nvidia/bin", "/usr/bin"])


def gpu_state():
    """The fields that nvidia-smi reports now; {} without nvidia-smi."""
    program = nvidia_smi()
    for fields in (GPU_FIELDS, GPU_FIELDS[:2]) if program else ():  # not every driver knows every field
        try:
            result = subprocess.run([program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader"],
                                    capture_output=True, text=True, timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return {}
        lines = result.stdout.strip().splitlines()
        if result.returncode == 0 and lines:
            return dict(zip(fields, (value.strip() for value in lines[0].split(","))))
    return {}


WATCHED = {"clocks.sm": "clock_mhz", "power.draw": "power_w", "temperature.gpu": "temperature_c"}


class GpuWatch:
    """Records the card's clock, power and temperature ten times a second, while its `with` block runs. Afterwards
    `seen` has of each the median and the 5th and 95th of a hundred; {} without nvidia-smi.
    """

    def __enter__(self):
        self.seen, self.samples, program = {}, tempfile.TemporaryFile("w+"), nvidia_smi()
        query = [f"--query-gpu={','.join(WATCHED)}", "--format=csv,noheader,nounits", "-i", "0", "-lms", "100"]
        self.process = program and subprocess.Popen([program, *query], stdout=self.samples, stderr=subprocess.DEVNULL)
        return self

    def __exit__(self, *_):
        if self.process:
            self.process.terminate()
            self.process.wait()
        self.samples.seek(0)
        self.seen = summary_of_samples(self.samples.read())
        self.samples.close()


def summary_of_samples(text):
    """The median, the 5th and the 95th percentile of each of WATCHED, from the lines of nvidia-smi."""
    rows = [line.split(",") for line in text.splitlines()]
    columns = zip(*(row for row in rows if len(row) == len(WATCHED)))
    summary = {}
    for name, column in zip(WATCHED.values(), columns):
        numbers = sorted(float(cell) for cell in column if re.fullmatch(r"\s*[\d.]+\s*", cell))
        if numbers:
            at = {percent: numbers[round(percent / 100 * (len(numbers) - 1))] for percent in (5, 50, 95)}
            summary[name] = {"samples": len(numbers), "median": at[50], "p5": at[5], "p95": at[95]}
    return summary


# ---- a session and its result files --------------------------------------------------------------------------------


class Session:
    """The programs, data and results of one session. With `dry`, everything runs on the host device, in sizes that take
    seconds.
    """

    def __init__(self, pack, data, out, dry, minutes, jobs=1):
        self.pack, self.data, self.out = os.path.abspath(pack), os.path.abspath(data), os.path.abspath(out)
        self.dry, self.jobs = dry, jobs
        self.end = time.monotonic() + 60 * minutes
        self.programs = self._unpack_programs()
        self.gpu = {} if dry else gpu_state()
        self.env, self.missing = {"OMP_WAIT_POLICY": "passive"}, []
        if not dry:
            programs = [self.program("train_gpt"), self.program("test_gpu")]
            env, self.missing = loader_environment(programs, self.programs)
            self.env.update(env)
            nccl = find_library("libnccl.so.2", library_directories())  # opened by the programs themselves
            if nccl:
                paths = [self.env.get("LD_LIBRARY_PATH", ""), os.path.dirname(nccl)]
                self.env["LD_LIBRARY_PATH"] = os.pathsep.join(path for path in paths if path)
        os.makedirs(self.out, exist_ok=True)

    def program(self, name):
        host = name if name == "test_ranks" else name.replace("_gpu", "") + "_cpu"
        return os.path.join(self.programs, host if self.dry else name)

    def _unpack_programs(self):
        """The folder of programs: unpacked from the pack into OUT, or the pack itself."""
        packed, place = os.path.join(self.pack, "programs.tar.xz"), os.path.join(self.out, "programs")
        if not os.path.exists(packed):
            return self.pack
        shutil.rmtree(place, ignore_errors=True)  # the pack may be newer
        with tarfile.open(packed) as tar:
            tar.extractall(place)
        return place

    def path(self, *parts):
        return os.path.join(self.out, *parts)

    def time_left(self):
        return self.end - time.monotonic()

    def run(self, command, limit, env=None, log=None):
        """Like run(), but within the time that is left, and with the path of the libraries."""
        return run(command, min(limit, self.time_left()), {**self.env, **(env or {})},
                   self.path("logs", log + ".log") if log else None)

    def shard(self, split):
        """The first shard of a split in the data folder, unpacked if it came as .xz."""
        for path in sorted(glob.glob(os.path.join(self.data, f"*{split}*.bin"))):
            return path
        for path in sorted(glob.glob(os.path.join(self.data, f"*{split}*.bin.xz"))):
            return self._unpack(path)
        return None

    def _unpack(self, path):
        import lzma
        plain = self.path("data", os.path.basename(path)[:-3])
        if not os.path.exists(plain):
            os.makedirs(os.path.dirname(plain), exist_ok=True)
            with lzma.open(path) as packed, open(plain + ".new", "wb") as file:
                shutil.copyfileobj(packed, file, 1 << 22)
            os.replace(plain + ".new", plain)
            sidecar = path[:-3] + ".json"
            if os.path.exists(sidecar):
                shutil.copy(sidecar, plain + ".json")
        return plain

    def archive(self):
        """Puts all results into one file, without weights and data."""
        path = self.path("results.tar.gz")
        with tarfile.open(path + ".new", "w:gz") as tar:
            for folder, _, files in sorted(os.walk(self.out)):
                if os.path.relpath(folder, self.out).split(os.sep)[0] in ("programs", "data"):
                    continue
                for name in sorted(files):
                    full = os.path.join(folder, name)
                    if not name.endswith(NOT_ARCHIVED) and not name.endswith(".new"):
                        tar.add(full, os.path.relpath(full, self.out))
        os.replace(path + ".new", path)
        return path

    def continue_from_archive(self):
        """Unpacks results of an earlier session that came with the programs."""
        earlier = os.path.join(self.pack, "results.tar.gz")
        if os.path.exists(earlier) and not glob.glob(self.path("part*.json")):
            with tarfile.open(earlier) as tar:
                tar.extractall(self.out, filter="data") if sys.version_info >= (3, 12) else tar.extractall(self.out)


class Part:
    """One result file: when, where and how each item was done, and the items by name."""

    def __init__(self, session, number, name):
        self.session = session
        self.path = session.path(f"part{number}_{name}.json")
        self.result = {"part": number, "what": name, "date": now(), "command": " ".join(sys.argv),
                       "card": session.gpu.get("name", "host device" if session.dry else "none found"),
                       "driver": session.gpu.get("driver_version", ""), "measured": not session.dry, "complete": False,
                       "items": {}}
        if os.path.exists(self.path):
            earlier = read_json(self.path)
            if earlier["card"] != self.result["card"]:
                raise SystemExit(f"{self.path} has results of {earlier['card']}, this is {self.result['card']}: "
                                 "give another --out")
            self.result.update(items=earlier["items"], date=earlier["date"])
        self.skipped = []
        self.lock = threading.Lock()

    def item(self, name, measure, seconds=0):
        """Measures an item once: if an earlier session finished it, its result is kept. Begins only if `seconds` are
        left. Items may be measured by several threads.
        """
        done = self.result["items"].get(name)
        if done and done.get("done"):
            return done
        if self.session.time_left() < seconds:
            self.skipped.append(name)
            return None
        start = time.monotonic()
        value = measure()
        value = {"done": True, "date": now(), "seconds": round(time.monotonic() - start, 2), **value}
        shown = [f"{key} {str(field)[:200]}" for key, field in value.items()
                 if not isinstance(field, (dict, list)) and key not in ("done", "date")]
        with self.lock:
            self.result["items"][name] = value
            self.save()
            print(f"  {name}: {', '.join(shown)}", flush=True)
        return value

    def save(self, **more):
        self.result.update(more)
        write_json(self.path, self.result)

    def finish(self, **more):
        complete = not self.skipped and all(item.get("done") for item in self.result["items"].values())
        self.save(complete=complete, skipped=self.skipped, **more)
        how = "complete" if complete else f"no time for: {', '.join(self.skipped)}" if self.skipped else "incomplete"
        print(f"  {how}; {self.path}", flush=True)
        return complete
