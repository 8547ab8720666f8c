"""Strangers at the port of a run, and a rank that lies, while two genuine ranks train a tiny model over TCP.

    python3 test/end_to_end/hostile_peers.py [--quick] [--seed N]

Strangers (silent, slow, noisy, leaving in the middle) must change nothing: the ranks end with the losses of an
undisturbed run. A lying rank sits between rank 0 and a genuine rank 1, forwards their meeting and then changes messages:
lengths, kinds, contents. The run must then end with one of the program's exit codes and without a sanitizer's report.
TRAIN_GPT names the program, preferably one built with AddressSanitizer.
"""

import argparse
import contextlib
import random
import socket
import struct
import subprocess
import sys
import threading
import time

from test_ranks import ENVIRONMENT, free_port
from trainer import PROGRAM, new_path, read_records, tiny_flags, workspace

LIMIT = 240  # seconds per run, also on a busy machine
# The messages of the meeting, in bytes (tcp_meeting.cpp), and the header of all later ones (transport_tcp.cpp).
CHALLENGE, HELLO, VERDICT = 24, 80, 256
HEADER = struct.Struct("<IIQQ")  # magic, kind, sequence, bytes
FINDING = ("AddressSanitizer", "runtime error:", "terminate called", "Segmentation")
OWN_CODES = (0, 2, 3, 4, 5, 6, 7)


def start_rank(rank, port, out, limit=60):
    flags = tiny_flags("--max-steps", "4", "--layers", "1", "--out", out, "--timeout-start", limit, "--timeout-step", limit)
    own = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return subprocess.Popen([PROGRAM, *map(str, flags)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            errors="replace", cwd=workspace(), env={**ENVIRONMENT, **own})


def finish(processes):
    """Returns (exit codes, output); leaves no process running."""
    try:
        outputs = [process.communicate(timeout=LIMIT)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [process.returncode for process in processes], "".join(outputs)


def losses(out):
    return [r["loss"] for r in read_records(out) if "loss" in r]


def connect(port):
    """A connection, as soon as somebody listens."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=5)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def require(condition, what, output):
    if not condition:
        sys.exit(f"FAILED: {what}\n{output}")


# ---- strangers -----------------------------------------------------------------------------------------------------

def speak(port, data, leave=False, reset=False):
    def stranger(kept):
        connection = connect(port)
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with contextlib.suppress(OSError):
            connection.sendall(data)
        if leave or reset:
            connection.close()
        else:
            kept.append(connection)
    return stranger


def slow(port, interval):
    """Sends one byte at a time, for as long as the other side accepts them."""
    def stranger(kept):
        connection = connect(port)
        kept.append(connection)

        def talk():
            with contextlib.suppress(OSError):
                for byte in b"LLMCrk03" + bytes(HELLO):
                    connection.sendall(bytes([byte]))
                    time.sleep(interval)
        threading.Thread(target=talk, daemon=True).start()
    return stranger


def strangers(port, rng):
    noise = rng.randbytes
    return [*[speak(port, b"")] * 320, *[speak(port, b"", leave=True)] * 5, *[speak(port, b"LLMCrk03", reset=True)] * 3,
            speak(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"), speak(port, noise(1 << 20)),
            *(speak(port, noise(rng.randrange(1, 300))) for _ in range(5)),
            # Half a hello, and whole ones without a valid proof.
            speak(port, b"LLMCrk03" + noise(20)), speak(port, b"LLMCrk03" + noise(20), leave=True),
            *(speak(port, b"LLMCrk03" + struct.pack("<ii", rank, world) + noise(64))
              for rank, world in ((1, 2), (0, 2), (-1, 2), (1, 3), (2**31 - 1, 2**31 - 1))),
            slow(port, 0.2), slow(port, 0.9)]


def check_strangers(rng):
    """All of them at once; rank 1 comes a moment later. Each kind alone: test/comm/tcp_meeting.cpp."""
    reference, out, kept = new_path(), new_path(), []
    port = free_port()
    codes, output = finish([start_rank(rank, port, reference) for rank in range(2)])
    require(codes == [0, 0], f"undisturbed ranks: exit codes {codes}", output)
    port = free_port()
    rank_0 = start_rank(0, port, out)
    for stranger in strangers(port, rng):
        stranger(kept)
    started = time.monotonic()
    codes, output = finish([rank_0, start_rank(1, port, out)])
    for connection in kept:
        connection.close()
    require(codes == [0, 0], f"strangers: exit codes {codes}", output)
    require(not any(f in output for f in FINDING), "strangers: a sanitizer's finding", output)
    require(losses(out) == losses(reference), "strangers: other losses", output)
    print(f"strangers: the ranks met and finished {time.monotonic() - started:.1f} s later")


# ---- a lying rank --------------------------------------------------------------------------------------------------

def receive(connection, count):
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise OSError("closed")
        data += part
    return data


def pass_on(source, target, count=None):
    """Forwards `count` bytes, or all until the end."""
    with contextlib.suppress(OSError):
        while count is None or count > 0:
            data = source.recv(65536 if count is None else count)
            if not data:
                break
            target.sendall(data)
            count = None if count is None else count - len(data)


def replaced(header, **changes):
    return HEADER.pack(*{**dict(zip(("magic", "kind", "sequence", "bytes"), header)), **changes}.values())


LIES = {
    "text without an end": lambda h, data, rng: HEADER.pack(*h) + b"x" * len(data),
    "noise": lambda h, data, rng: HEADER.pack(*h) + rng.randbytes(len(data)),
    "huge numbers": lambda h, data, rng: HEADER.pack(*h) + b"\xff" * (len(data) - 1) + b"\x7f" * bool(data),
    "a length of 2^12": lambda h, data, rng: HEADER.pack(*h) + struct.pack("<Q", 1 << 12)[:len(data)] + data[8:],
    "a length of 2^40": lambda h, data, rng: HEADER.pack(*h) + struct.pack("<Q", 1 << 40)[:len(data)] + data[8:],
    "a longer message": lambda h, data, rng: replaced(h, bytes=1 << 40) + data,
    "a shorter message": lambda h, data, rng: replaced(h, bytes=max(0, h[3] - 1)) + data[:-1],
    "another kind": lambda h, data, rng: replaced(h, kind=rng.randrange(1, 9)) + data,
    "a failure without text": lambda h, data, rng: replaced(h, kind=5, bytes=2**64 - 1) + b"\xff\x1b[2J" * 400,
    "another sequence": lambda h, data, rng: replaced(h, sequence=h[2] + 1) + data,
    "another magic number": lambda h, data, rng: replaced(h, magic=1) + data,
    "half a message": lambda h, data, rng: (HEADER.pack(*h) + data)[:HEADER.size + len(data) // 2],
}


def lying_proxy(listener, port, turn, lie, rng, from_rank_0=False):
    """Stands between rank 1, which connects to the listener, and rank 0 at the port. Replaces message number `turn` of
    rank 1 (or of rank 0), and closes the connection if the replacement is only half a message.
    """
    with contextlib.suppress(OSError):
        spoke, _ = listener.accept()
        hub = connect(port)
        for source, target, count in ((hub, spoke, CHALLENGE), (spoke, hub, HELLO), (hub, spoke, VERDICT)):
            pass_on(source, target, count)
        hub.settimeout(None)
        liar, believer = (hub, spoke) if from_rank_0 else (spoke, hub)

        def answer():
            pass_on(believer, liar)
            with contextlib.suppress(OSError):
                liar.shutdown(socket.SHUT_RDWR)  # the believer has left, as the other rank would see without the proxy

        threading.Thread(target=answer, daemon=True).start()
        with contextlib.suppress(OSError):
            number = 0
            while True:
                header = HEADER.unpack(receive(liar, HEADER.size))
                data = receive(liar, header[3])
                believer.sendall(lie(header, data, rng) if number == turn else HEADER.pack(*header) + data)
                if number == turn and lie is LIES["half a message"]:
                    break
                number += 1
        for connection in (hub, spoke):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # close() alone waits for the other thread's recv()
            connection.close()


def check_lie(turn, name, rng, from_rank_0=False):
    port, out = free_port(), new_path()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = threading.Thread(target=lying_proxy, daemon=True,
                                 args=(listener, port, turn, LIES[name], rng, from_rank_0))
        proxy.start()
        ranks = [start_rank(0, port, out, limit=8), start_rank(1, listener.getsockname()[1], out, limit=8)]
        codes, output = finish(ranks)
    title = f"rank {0 if from_rank_0 else 1} lies in message {turn}: {name}"
    require(not any(f in output for f in FINDING), f"{title}: codes {codes}, a sanitizer's finding or a crash", output)
    require(all(code in OWN_CODES for code in codes), f"{title}: exit codes {codes}", output)
    require(codes == [0, 0] or "rank 0: " in output or "rank 1: " in output or "rank 0 on " in output
            or "rank 1 on " in output, f"{title}: exit codes {codes} without a word", output)
    print(f"{title}: exit codes {codes}")


def check_lies(rng, turns):
    for turn in turns:
        for name in LIES:
            check_lie(turn, name, rng, from_rank_0=False)
            check_lie(turn, name, rng, from_rank_0=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="seconds instead of half an hour")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    check_strangers(rng)
    if arguments.quick:
        check_lie(0, "text without an end", rng)  # the host name
        check_lie(1, "huge numbers", rng)
        check_lie(20, "text without an end", rng)  # whether the run goes on
    else:
        check_lies(rng, [*range(12), 20, 21, 24, 40])


if __name__ == "__main__":
    main()
