"""Builds a folder with a kustomization.yaml as `kubectl kustomize` does, as far as k8s/ needs it:
resources, components, patches (strategic merge and JSON 6902), images, labels, nameSuffix, namespace,
replacements. Anything else is an error, and never passed over.

Thread safety: functions without state.
"""
import copy
import pathlib
import re

import yaml

KNOWN = {"apiVersion", "kind", "resources", "components", "patches", "images", "labels", "nameSuffix",
         "namespace", "replacements"}
CLUSTER_WIDE = {"Namespace", "ClusterRole", "ClusterRoleBinding", "PersistentVolume", "StorageClass"}
# Kinds that may get a suffix or labels for selectors here. Our objects refer by name only to accounts among
# these kinds.
SUFFIXED = {"Deployment", "Service", "ServiceAccount", "PodDisruptionBudget"}
# A part of a replacement's path. Dots separate parts; brackets hold a name with dots, or KEY=VALUE.
PATH_PART = re.compile(r"\[([^\]]*)\]|([^.\[\]]+)")
# Keys that name an item of a list in a strategic merge. Other lists are replaced whole.
MERGE_KEYS = {"containers": "name", "initContainers": "name", "volumes": "name", "env": "name",
              "volumeMounts": "mountPath"}
# `ports` of a container and of a Service have different keys.
PORT_KEYS = ("containerPort", "port")


class ManifestError(Exception):
    """An error in a manifest. Its text names the file."""


class _Loader(yaml.SafeLoader):
    """Refuses a key that occurs twice, since YAML would silently drop the first one."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} occurs twice", node.start_mark)
        return super().construct_mapping(node, deep)


def read(path):
    """Returns the documents of a file."""
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8")
        return [each for each in yaml.load_all(text, Loader=_Loader) if each is not None]
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ManifestError(f"{path}: {' '.join(str(error).split())}") from error


def build(folder):
    """Returns the objects of an overlay."""
    return _build(pathlib.Path(folder), [])


def _build(folder, objects):
    """Builds a folder. A component changes the objects of its user; any other folder is built alone."""
    path = folder / "kustomization.yaml"
    documents = read(path)
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise ManifestError(f"{path}: must hold exactly one mapping")
    plan = documents[0]
    if unknown := set(plan) - KNOWN:
        raise ManifestError(f"{path}: {', '.join(sorted(unknown))}: not supported here")
    objects = list(objects)
    for name in plan.get("resources", []):
        objects += _resource(folder, name)
    for name in plan.get("components", []):
        objects = _build(folder / name, objects)
    for patch in plan.get("patches", []):
        objects = _patched(objects, patch, folder, plan.get("kind") == "Component")
    _add_suffix(objects, plan.get("nameSuffix"), path)
    for each in objects:
        _set_namespace(each, plan.get("namespace"))
        _add_labels(each, plan.get("labels", []), path)
        _set_images(each, plan.get("images", []), path)
    for replacement in plan.get("replacements", []):
        _replace(objects, replacement, path)
    return objects


def _resource(folder, name):
    path = folder / name
    if path.is_dir():
        return _build(path, [])
    documents = read(path)
    for each in documents:
        if not (isinstance(each, dict) and each.get("apiVersion") and each.get("kind")
                and each.get("metadata", {}).get("name")):
            raise ManifestError(f"{path}: an object needs apiVersion, kind and metadata.name")
    return documents


def identity(each):
    return each["apiVersion"], each["kind"], each["metadata"]["name"]


def _patched(objects, patch, folder, is_component):
    if set(patch) - {"path", "patch", "target"}:
        raise ManifestError(f"{folder}: a patch may have only path or patch, and target")
    if "path" in patch:
        documents = read(folder / patch["path"])
    else:
        documents = list(yaml.load_all(patch["patch"], Loader=_Loader))
    for document in documents:
        if isinstance(document, list):
            hit = _found(objects, patch.get("target"), folder)
            # A component may patch objects that an overlay does not have.
            if not hit and not is_component:
                raise ManifestError(f"{folder}: a patch of {patch['target']} finds no object")
            for each in hit:
                for operation in document:
                    _operate(each, operation, folder)
        elif "target" in patch:
            raise ManifestError(f"{folder}: a target is supported here only for a list of operations")
        else:
            objects = _merged_into(objects, document, folder)
    return objects


def _found(objects, target, folder):
    if not target or set(target) - {"kind", "name"}:
        raise ManifestError(f"{folder}: a list of operations needs a target of kind and name")
    return [each for each in objects if is_meant(each, target)]


def is_meant(each, target):
    """Returns whether a target means this object. Its kind and name are regular expressions for the whole word."""
    return all(re.fullmatch(target.get(key, ".*"), value)
               for key, value in (("kind", each["kind"]), ("name", each["metadata"]["name"])))


def _merged_into(objects, document, folder):
    """Merges the document into the object that it names, by a strategic merge."""
    wanted = document["kind"], document["metadata"]["name"]
    hit = [each for each in objects if (each["kind"], each["metadata"]["name"]) == wanted]
    if len(hit) != 1:
        raise ManifestError(f"{folder}: a patch of {wanted} finds {len(hit)} objects, not one")
    if document.get("$patch") == "delete":
        return [each for each in objects if each is not hit[0]]
    merged = _merged(hit[0], document)
    return [merged if each is hit[0] else each for each in objects]


def _merged(old, new, key=None):
    """Strategic merge: mappings by key, some lists by the name of their items; null takes away."""
    if isinstance(old, dict) and isinstance(new, dict):
        result = dict(old)
        for name, value in new.items():
            if value is None:
                result.pop(name, None)
            else:
                result[name] = _merged(old[name], value, name) if name in old else value
        return result
    merge_key = _merge_key(key, old, new)
    if merge_key is None:
        return copy.deepcopy(new)
    result = {each[merge_key]: each for each in old}
    for each in new:
        name = each[merge_key]
        if each.get("$patch") == "delete":
            result.pop(name, None)
        else:
            result[name] = _merged(result[name], each) if name in result else each
    return list(result.values())


def _merge_key(key, old, new):
    if not (isinstance(old, list) and isinstance(new, list)):
        return None
    items = old + new
    if key == "ports":
        return next((each for each in PORT_KEYS if all(each in item for item in items)), None)
    return MERGE_KEYS.get(key)


def _operate(each, operation, folder):
    """Carries out one operation of JSON 6902."""
    where = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    try:
        parent = each
        for part in where[:-1]:
            parent = parent[int(part)] if isinstance(parent, list) else parent[part]
        _operate_at(parent, where[-1], operation)
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise ManifestError(f"{folder}: {operation['op']} {operation['path']}: {error!r}") from error


def _operate_at(parent, name, operation):
    is_list = isinstance(parent, list)
    place = len(parent) if name == "-" else int(name) if is_list else name
    # A copy, since several objects may get this value and later patches change it in one of them.
    value = copy.deepcopy(operation.get("value"))
    if operation["op"] == "add":
        if is_list:
            parent.insert(place, value)
        else:
            parent[place] = value
        return
    found = parent[place]
    if operation["op"] == "replace":
        parent[place] = value
    elif operation["op"] == "remove":
        del parent[place]
    elif operation["op"] != "test":
        raise ValueError("unknown operation")
    elif found != value:
        raise ValueError(f"the value is {found!r}")


def _set_namespace(each, namespace):
    if namespace and each["kind"] not in CLUSTER_WIDE:
        each["metadata"]["namespace"] = namespace
    if namespace and each["kind"] == "RoleBinding":
        for subject in each["subjects"]:
            if subject["kind"] == "ServiceAccount":
                subject["namespace"] = namespace


def _add_suffix(objects, suffix, path):
    if not suffix:
        return
    accounts = {each["metadata"]["name"] for each in objects if each["kind"] == "ServiceAccount"}
    for each in objects:
        if each["kind"] not in SUFFIXED:
            raise ManifestError(f"{path}: nameSuffix: not supported here for a {each['kind']}")
        each["metadata"]["name"] += suffix
        if pod_of(each) is not None and pod_of(each)["spec"].get("serviceAccountName") in accounts:
            pod_of(each)["spec"]["serviceAccountName"] += suffix


def _add_labels(each, labels, path):
    for entry in labels:
        if set(entry) - {"pairs", "includeSelectors"}:
            raise ManifestError(f"{path}: labels: only pairs and includeSelectors are supported here")
        places = [each["metadata"].setdefault("labels", {})]
        if entry.get("includeSelectors"):
            places += _selected_labels(each, path)
        for place in places:
            place.update(entry["pairs"])


def _selected_labels(each, path):
    """Returns the labels of an object by which pods are selected."""
    if each["kind"] == "Service":
        return [each["spec"]["selector"]]
    if each["kind"] == "ServiceAccount":
        return []
    if each["kind"] == "PodDisruptionBudget":
        return [each["spec"]["selector"]["matchLabels"]]
    template = pod_of(each)
    if each["kind"] not in SUFFIXED or "affinity" in template["spec"]:
        raise ManifestError(f"{path}: includeSelectors: not supported here for {each['kind']}")
    return [each["spec"]["selector"]["matchLabels"], template["metadata"]["labels"],
            *(spread["labelSelector"]["matchLabels"]
              for spread in template["spec"].get("topologySpreadConstraints", []))]


def _replace(objects, replacement, path):
    """Writes a field of one object to fields of others, or to parts of those fields."""
    source = replacement.get("source", {})
    if set(replacement) != {"source", "targets"} or set(source) != {"kind", "fieldPath"}:
        raise ManifestError(f"{path}: replacements: must have a source of kind and fieldPath, and targets")
    found = [each for each in objects if each["kind"] == source["kind"]]
    if len(found) != 1:
        raise ManifestError(f"{path}: replacements: found {len(found)} objects of kind {source['kind']}, not one")
    value = _field(found[0], source["fieldPath"], path)
    for target in replacement["targets"]:
        if set(target) - {"select", "fieldPaths", "options"} or (
                set(target.get("options", {})) - {"delimiter", "index"}):
            raise ManifestError(f"{path}: replacements: a target may have only select, fieldPaths, delimiter, index")
        for each in [each for each in objects if _is_selected(each, target["select"], path)]:
            for field in target["fieldPaths"]:
                _field(each, field, path, lambda old, options=target.get("options"): _with(old, value, options))


def _is_selected(each, select, path):
    if set(select) - {"kind", "name", "labelSelector"}:
        raise ManifestError(f"{path}: replacements: select may have only kind, name and one label")
    label, _, value = select.get("labelSelector", "").partition("=")
    return (each["kind"] == select["kind"] and select.get("name") in (None, each["metadata"]["name"])
            and (not label or each["metadata"].get("labels", {}).get(label) == value))


def _with(old, value, options):
    """Returns the old text with one of its parts replaced. Without options the value replaces all of it."""
    if not options:
        return value
    parts = old.split(options["delimiter"])
    parts[options["index"]] = value
    return options["delimiter"].join(parts)


def _field(each, field, path, change=None):
    """Returns the field at a replacement's path. With `change` the object gets change(field) in its place."""
    place, key = None, None
    found = each
    try:
        for bracketed, plain in PATH_PART.findall(field):
            name, equals, value = bracketed.partition("=")
            place, key = found, bracketed or plain
            if equals:
                [key] = [i for i, item in enumerate(found) if item[name] == value]
            elif isinstance(found, list):
                key = int(key)
            found = place[key]
        if change is not None:
            place[key] = change(found)
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise ManifestError(f"{path}: replacements: {field}: {error!r}") from error
    return found


def _set_images(each, images, path):
    for change in images:
        if set(change) - {"name", "newName", "newTag"}:
            raise ManifestError(f"{path}: images: only name, newName and newTag are supported here")
    for container in containers_of(each):
        for change in images:
            if container["image"].split(":")[0].split("@")[0] == change["name"]:
                container["image"] = (change.get("newName", change["name"])
                                      + (f":{change['newTag']}" if "newTag" in change else ""))


def pod_of(each):
    """Returns the pod template of a workload, or None."""
    return each.get("spec", {}).get("template") if each["kind"] in (
        "Deployment", "StatefulSet", "DaemonSet", "Job") else None


def containers_of(each):
    template = pod_of(each)
    if template is None:
        return []
    spec = template["spec"]
    return spec.get("initContainers", []) + spec.get("containers", [])
