"""Renders the chart for Kubernetes with Helm's own code, and checks each object; run by the environment of Ray.

Reads the values from the standard input, as JSON, and prints the objects, or exits with what is wrong. Objects of
Kubernetes are checked against its published schemas, unknown fields too; of a RayCluster the pods are, and the rest
against the fields that KubeRay 1.6 documents (`raycluster.json`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml
from helm_python import HelmError
from helm_python.chart import Chart, lint

CHART = Path(__file__).parents[2] / "src/fumehood/deployment/helm/fumehood"
RAY_CLUSTER = Path(__file__).with_name("raycluster.json")
KUBERNETES = "1.37"


def rendered(values: dict[str, Any]) -> list[dict[str, Any]]:
    """The objects that the chart makes of some values."""
    with Chart.load(CHART) as chart:
        texts = chart.render(values, name="demo", namespace="agents")

    texts = {name: text for name, text in texts.items() if name.endswith(".yaml")}
    return [one for name in sorted(texts) for one in yaml.safe_load_all(texts[name]) if one]


def check(one: dict[str, Any]) -> None:
    """Raises for an object that does not fit its schema."""
    if one["kind"] != "RayCluster":
        kubernetes_validate.validate(one, KUBERNETES, strict=True)
        return

    jsonschema.validate(one, json.loads(RAY_CLUSTER.read_text(encoding="utf-8")))

    for group in (one["spec"]["headGroupSpec"], *one["spec"]["workerGroupSpecs"]):
        metadata = {"name": "pod", **group["template"]["metadata"]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": group["template"]["spec"]}
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def main() -> None:
    """Prints the objects, or what is wrong."""
    if errors := lint(CHART)["errors"]:
        sys.exit(f"the chart is wrong: {errors}")

    try:
        objects = rendered(json.load(sys.stdin))
    except HelmError as error:
        sys.exit(f"refused: {error}")

    for one in objects:
        check(one)

    print(json.dumps(objects))


if __name__ == "__main__":
    main()
