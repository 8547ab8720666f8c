"""make install and make dist: their results run elsewhere, and temporary files are removed."""

import glob
import os
import re
import subprocess
import unittest

import trainer
from trainer import ROOT, new_path


def make(*arguments, code=0):
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    done = subprocess.run(["make", "-s", *arguments], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def run(*command, directory):
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True).stdout


class Packages(unittest.TestCase):
    def check_programs(self, package):
        """The program prints its version and trains, and an installed script reads its run."""
        program = os.path.join(package, "train_gpt_cpu")
        version = run(program, "--version", directory=package)
        self.assertRegex(version, r"(?m)^train_gpt \d+\.\d+\.\d+ ")
        for name in ("git", "built_for", "compiler", "openblas"):
            self.assertRegex(version, rf"(?m)^{name}: \S")
        elsewhere = new_path()
        os.makedirs(elsewhere)
        run(program, *trainer.tiny_flags("--max-steps", "2", "--out", "run"), directory=elsewhere)
        said = run("python3", os.path.join(package, "scripts", "read_checkpoint.py"), "run", directory=elsewhere)
        self.assertIn("step 2", said)
        planned = subprocess.run(
            [os.path.join(package, "scripts", "pretrain", "gpt2_124M.sh"), "--dry-run", "--gpu", "h100"], cwd=elsewhere,
            env={**os.environ, "GPUS": "8", "PROGRAM": program}, capture_output=True, text=True, check=True).stdout
        self.assertIn("Step: 524,288 tokens", planned)
        example = os.path.join(package, "scripts", "configs", "llama_1b.json")
        planned = run(program, "--config", example, "--dry-run", "--gpu", "h100", directory=elsewhere)
        self.assertIn("Model llama3.2-1b", planned)

    def check_links(self, package):
        """The installed pages for users link to installed files."""
        pages = [os.path.join(package, "README.md"), *glob.glob(os.path.join(package, "dev", "guide", "*.md"))]
        self.assertGreater(len(pages), 20)
        for page in pages:
            with open(page, encoding="utf-8") as file:
                for target in re.findall(r"\]\((?!https?:)([^)#]+)", file.read()):
                    self.assertTrue(os.path.exists(os.path.join(os.path.dirname(page), target)), (page, target))

    def test_install(self):
        root = new_path()
        make("install", f"DESTDIR={root}", "PREFIX=/opt/there")
        installed = os.path.join(root, "opt", "there")
        link = os.path.join(installed, "bin", "train_gpt_cpu")
        self.assertEqual(os.path.realpath(link), os.path.join(os.path.realpath(installed), "lib/train_gpt/train_gpt_cpu"))
        self.assertEqual(glob.glob(os.path.join(installed, "**", "__pycache__"), recursive=True), [])
        self.check_programs(os.path.join(installed, "lib", "train_gpt"))
        self.check_links(os.path.join(installed, "lib", "train_gpt"))
        make("install", f"DESTDIR={root}", "PREFIX=/opt/there")  # over the existing files
        make("uninstall", f"DESTDIR={root}", "PREFIX=/opt/there")
        self.assertEqual([files for _, _, files in os.walk(root) if files], [])

    def test_dist(self):
        """Without the CUDA build, and with the host build for this machine only, because other builds take long."""
        said = make("dist", "NVCC=", "DIST_OPTIONS=").stdout
        path, = re.findall(r"build/dist/train_gpt-\d+\.\d+\.\d+-linux-\w+\.tar\.gz", said)
        place = new_path()
        os.makedirs(place)
        run("tar", "-xzf", os.path.join(ROOT, path), directory=place)
        name, = os.listdir(place)
        self.assertEqual(name + ".tar.gz", os.path.basename(path))
        self.check_programs(os.path.join(place, name))


if __name__ == "__main__":
    unittest.main()
