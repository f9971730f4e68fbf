"""The manifests are valid and complete."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator

from unit.k8s.custom_resources import SCHEMAS
from unit.k8s.manifests import (
    BASE,
    CHANGES,
    COMPONENTS,
    K8S,
    OVERLAYS,
    Object,
    kustomization,
    load,
    rendered,
)

# The oldest supported version, one between, and the newest version that has a schema.
VERSIONS = ("1.31", "1.34", "1.37")
FOLDERS = (BASE, *COMPONENTS)
_HASH = re.compile(r"-[a-z0-9]{10}$")


def check(objects: list[Object], version: str) -> None:
    for object_ in objects:
        schema = SCHEMAS.get(object_["kind"])
        if schema is None:
            kubernetes_validate.validate(object_, version, strict=True)
            continue
        # Not part of Kubernetes itself, and the same for each of its versions.
        Draft202012Validator(schema).validate(object_)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_has_the_schema_of_its_kind(folder: Path, version: str) -> None:
    objects = load(folder)
    assert objects
    check(objects, version)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda document: document["spec"].update(replica=2),
        lambda document: document["spec"].update(replicas="two"),
        lambda document: document["spec"]["template"]["spec"]["containers"][0].update(envform=[]),
        lambda document: document["spec"].pop("selector"),
    ],
    ids=["unknown field", "wrong type", "unknown field deep inside", "required field"],
)
def test_the_schema_check_rejects_invalid_manifests(spoil: Any) -> None:
    gateway = next(
        document
        for document in load(BASE)
        if document["kind"] == "Deployment" and document["metadata"]["name"] == "gateway"
    )
    spoil(gateway)
    with pytest.raises(kubernetes_validate.ValidationError):
        check([gateway], VERSIONS[-1])


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_kustomization_lists_exactly_the_files_beside_it(folder: Path) -> None:
    here = kustomization(folder)
    files = {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}
    assert sorted(here["resources"]) == sorted(files)
    settings = {
        file for generator in here.get("configMapGenerator", ()) for file in generator["envs"]
    }
    assert settings == {f"settings/{path.name}" for path in (folder / "settings").glob("*")}


def test_every_folder_of_manifests_is_checked() -> None:
    folders = {path.parent for path in K8S.rglob("kustomization.yaml")}
    assert folders == {*FOLDERS, *OVERLAYS, *CHANGES}


@pytest.mark.parametrize("component", CHANGES, ids=lambda folder: folder.name)
def test_every_patch_of_the_base_matches_an_object_and_keeps_it_valid(component: Path) -> None:
    objects = load(BASE)
    changed = []
    for patch in kustomization(component)["patches"]:
        (target,) = [
            object_
            for object_ in objects
            if object_["kind"] == patch["target"]["kind"]
            and object_["metadata"]["name"] == patch["target"]["name"]
        ]
        for change in yaml.safe_load(patch["patch"]):
            *way, last = change["path"].strip("/").split("/")
            place = target
            for key in way:
                place = place[key]
            assert change["op"] == "add"
            assert last not in place
            place[last] = change["value"]
        changed.append(target)
    for version in VERSIONS:
        check(changed, version)


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda folder: folder.name)
def test_an_overlay_names_existing_objects(overlay: Path) -> None:
    here = kustomization(overlay)
    for name in (*here["resources"], *here.get("components", ())):
        assert (overlay / name / "kustomization.yaml").is_file(), name
    known = {
        document["metadata"]["name"] for document in load(BASE) if document["kind"] == "Deployment"
    }
    assert {replica["name"] for replica in here.get("replicas", ())} <= known


@pytest.mark.child_process
@pytest.mark.parametrize("folder", [BASE, *OVERLAYS], ids=lambda folder: folder.name)
def test_manifests_rendered_by_kubectl_are_valid_and_complete(folder: Path) -> None:
    objects = rendered(folder)
    if objects is None:
        pytest.skip("kubectl is not installed")
    check(objects, VERSIONS[-1])
    names = {(object_["kind"], _HASH.sub("", object_["metadata"]["name"])) for object_ in objects}
    expected = {(document["kind"], document["metadata"]["name"]) for document in load(BASE)}
    for component in kustomization(folder).get("components", ()):
        expected |= {
            (document["kind"], document["metadata"]["name"])
            for document in load(folder / component)
        }
    assert names == expected
    for object_ in objects:
        assert object_["kind"] == "Namespace" or object_["metadata"]["namespace"] == "strata"
