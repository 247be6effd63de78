#!/usr/bin/env python3
"""What cutting a pipeline by true cost gains where most of the model is frozen: measured, beside its bound and its plan.

usage: frozen_gain.py FOLDER [--binary build/release/bin/mmtrain] [--runs 3] [--steps 25] [--quiet COMMAND]

A frozen picture tower and a frozen LLM of equal forward time, a projector that trains, two ranks of one thread each. The
same steps run under two cuts: by forward time (which is the cut by parameters, too: both halves have as many), and
`stages: auto`, which goes by what each layer costs under its frozen pattern; without and with recompute. `mmtrain
profile` measures the layers before each pair of runs, `mmtrain plan` predicts step times and memory from that. A run's
figure is the median of its steps after the fifth; the best of the runs counts. Prints tables in Markdown.
Needs Python >= 3.9, mpirun, and two cores that do nothing else; --quiet puts a command in front of every measured one.
"""
import argparse
import json
import os
import random
import re
import shlex
import shutil
import statistics
import subprocess
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import learn_tokenizer  # noqa: E402
import quickstart_media  # noqa: E402

LAYERS = 24  # fine enough that a place can be had within 2 % of the ideal
SIDE = 112  # pixels: 64 patches of 14
SAMPLES_A_BLOCK, BLOCKS = 1, 32
TEXT = "abcd"
WARM_UP = 5
CUTS = {"forward": f'[{{eyes: "0-{LAYERS - 1}"}}, {{llm: "0-{LAYERS - 1}"}}]', "auto": "auto"}
CONFIG = """\
run: {{output_dir: run, seed: 1, device: cpu}}
modules:
  eyes: {{role: encoder, modality: image, kind: clip, hidden: {hidden}, intermediate: {tower_intermediate}, layers: {layers}, heads: 4,
         patch: 14, image_size: {side}, trainable: false, projector: {{kind: linear, trainable: true}}}}
  llm: {{role: llm, kind: llama, hidden: {hidden}, intermediate: {intermediate}, layers: {layers}, heads: 4,
        trainable: false}}
parallel:
  layout: {{all: {{pp: 2, stages: {stages}}}}}
  schedule: {{policy: 1f1b}}
{cluster}train: {{steps: {steps}, global_batch_size: {batch}, tokens_per_microbatch: {rows}, precision: fp32,
        recompute: {recompute}}}
optimizer: {{kind: adamw, lr: 1e-4}}
data:
  sets: [{{path: data.json, format: llava}}]
  template: plain
  tokenizer: tokenizer.json
  max_sequence: {max_sequence}
log: {{trace: {{steps: [{steps}, {steps}]}}}}
"""


def make_data(folder):
    os.makedirs(folder, exist_ok=True)
    draw = random.Random(1)
    samples = []
    for i in range(SAMPLES_A_BLOCK * BLOCKS):
        with open(os.path.join(folder, f"{i}.png"), "wb") as file:
            file.write(quickstart_media.png_bytes(draw.randbytes(SIDE * SIDE), SIDE, SIDE))
        samples.append({"id": str(i), "image": f"{i}.png", "conversations": [
            {"from": "human", "value": "<image>"}, {"from": "gpt", "value": TEXT}]})
    with open(os.path.join(folder, "data.json"), "w", encoding="utf-8") as file:
        json.dump(samples, file)
    learn_tokenizer.write(os.path.join(folder, "tokenizer.json"), learn_tokenizer.learn({TEXT: 1}, 0))


class Bench:
    def __init__(self, args):
        self.args = args
        self.binary = os.path.abspath(args.binary)
        self.rows = SAMPLES_A_BLOCK * args.sample_rows

    def config(self, name, cut, recompute, cluster=True):
        path = os.path.join(self.args.folder, name + ".yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(CONFIG.format(
                layers=LAYERS, side=SIDE, hidden=self.args.hidden, tower_intermediate=4 * self.args.hidden,
                intermediate=self.args.intermediate, stages=CUTS[cut], steps=self.args.steps,
                batch=SAMPLES_A_BLOCK * BLOCKS, rows=self.rows, max_sequence=self.args.sample_rows,
                recompute=recompute, cluster="cluster: {costs: costs.json}\n" if cluster else ""))
        return path

    def run(self, *arguments, ranks=2):
        launch = shlex.split(self.args.quiet) if ranks else []
        launch += ["mpirun", "-np", str(ranks), "--bind-to", "none"] if ranks else []
        done = subprocess.run(launch + [self.binary, *arguments], cwd=self.args.folder, capture_output=True, text=True,
                              env={**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"})
        if done.returncode != 0:
            sys.exit(f"{' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    def profile(self, recompute):
        path = self.config("profile", "auto", recompute, cluster=False)
        self.run("profile", path, "--out", "costs.json")
        with open(os.path.join(self.args.folder, "costs.json"), encoding="utf-8") as file:
            costs = json.load(file)
        full = {}  # by kind: the largest block
        for layer in costs["layers"]:
            if layer["flops"]["forward"] > full.get(layer["kind"], layer)["flops"]["forward"]:
                full[layer["kind"]] = layer
            full.setdefault(layer["kind"], layer)
        eyes = next(l["ns"] for k, l in full.items() if k.startswith("clip layer"))
        llm = next(l["ns"] for k, l in full.items() if k.startswith("llama layer"))
        again = llm["recompute"] if recompute != "none" else 0
        return {"eyes": eyes["forward"], "llm": llm["forward"],
                "c": (llm["forward"] + llm["backward_input"] + again) / llm["forward"]}

    def plan(self, path):
        return json.loads(self.run("plan", path, "--ranks", "2", "--json", ranks=0))

    def train(self, path, name):
        folder = os.path.join(self.args.folder, name)
        shutil.rmtree(folder, ignore_errors=True)
        out = self.run("train", path, "--set", f"run.output_dir={folder}")
        with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        with open(os.path.join(folder, f"timeline-step-{self.args.steps}.html"), encoding="utf-8") as file:
            page = file.read()
        data = json.loads(page.split('id="data">')[1].split("</script>")[0])
        shutil.rmtree(os.path.join(folder, "checkpoints"), ignore_errors=True)
        memory = re.search(r"estimate \S+ \(([-+.0-9]+)%\)", out)
        return {"seconds": statistics.median(line["step_seconds"] for line in lines if line["step"] > WARM_UP),
                "arenas": [rank["peak"] for rank in data["timelines"][1]["ranks"]],
                "resident": float(memory.group(1)) if memory else None}


def milliseconds(seconds):
    return f"{1e3 * seconds:.0f} ms"


def mib(count):
    return f"{count / 2**20:.1f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--binary", default=os.path.join(HERE, "..", "build", "release", "bin", "mmtrain"))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--recompute", default="none,full")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--intermediate", type=int, default=592, help="of the LLM: makes its forward as long as the tower's")
    parser.add_argument("--sample-rows", type=int, default=71)
    parser.add_argument("--quiet", default="")
    args = parser.parse_args()
    args.folder = os.path.abspath(args.folder)
    make_data(args.folder)
    bench = Bench(args)
    gains, steps = [], []
    for recompute in args.recompute.split(","):
        best, plans, costs = {}, {}, None
        for run in range(args.runs):
            costs = bench.profile(recompute)  # in the same job as the runs that follow
            for cut in CUTS:
                name = f"{cut}-{recompute}"
                path = bench.config(name, cut, recompute)
                plan = bench.plan(path)
                result = bench.train(path, name)
                if cut not in best or result["seconds"] < best[cut]["seconds"]:
                    best[cut], plans[cut] = result, plan
                print(f"{name} run {run}: {result}, planned {plan['step_seconds']:.4f} s; {costs}", file=sys.stderr)
        c = costs["c"]
        bound = 2 * c / (1 + c)
        gain = best["forward"]["seconds"] / best["auto"]["seconds"]
        simulated = plans["forward"]["step_seconds"] / plans["auto"]["step_seconds"]
        gains.append(f"| {recompute} | {costs['llm'] / costs['eyes']:.2f} | {c:.2f} | {bound:.2f} | {simulated:.2f} | {gain:.2f} | "
                     f"{100 * (gain / bound - 1):+.1f} % | {100 * (gain / simulated - 1):+.1f} % |")
        for cut in CUTS:
            result, plan = best[cut], plans[cut]
            planned = [place["activations"] for place in plan["places"]]
            steps.append(
                f"| {recompute} | {cut} | {milliseconds(plan['step_seconds'])} | {milliseconds(result['seconds'])} | "
                f"{100 * (plan['step_seconds'] / result['seconds'] - 1):+.1f} % | "
                f"{' / '.join(mib(b) for b in planned)} | {' / '.join(mib(b) for b in result['arenas'])} | "
                f"{result['resident']:+.1f} % |")
    print("| recompute | LLM layer F / tower layer F | c | bound 2c/(1+c) | simulated gain | measured gain | to the bound | to the simulation |")
    print("|---|---|---|---|---|---|---|---|")
    print("\n".join(gains) + "\n")
    print("| recompute | cut | simulated step | measured | error | arenas planned, MiB by rank | peak | resident of rank 0 over its estimate |")
    print("|---|---|---|---|---|---|---|---|")
    print("\n".join(steps))


if __name__ == "__main__":
    main()
