/** What holds a sandbox, layer by layer, in a sentence each; and its limits. */

import type { Sandbox } from "../api/types";
import { bytes, seconds, visibleLine } from "../parts/format";

const HOLDS: Record<string, string> = {
  namespaces: "It sees processes, mounts, users and network interfaces of its own, and none of the host's.",
  identity: "It runs as a user that owns nothing on this machine.",
  "filesystem root": "Its root is a read-only tree of its own; only its home and /tmp can be written.",
  "own inodes": "Locks and watches that it sets on files of the system stay inside.",
  capabilities: "It has no privilege of root, and cannot get one.",
  "no new privileges": "A setuid program gives it nothing.",
  seccomp: "System calls that are not on a list do not exist for it.",
  landlock: "The kernel refuses paths outside of its tree, also where a mount would lead there.",
  network: "It has a network of its own, without a way out but what was allowed.",
  "cgroup memory": "Beyond its memory it is ended, and the host is not short of it.",
  "cgroup pids": "It cannot fill the process table.",
  "cgroup cpu": "It gets its share of the processors, and others get theirs.",
  "cgroup freezer": "It can be stopped as a whole, whatever it does.",
  "cgroup io": "It cannot keep the disk busy for others.",
};

export function Isolation({ sandbox }: { sandbox: Sandbox }) {
  const { layers, level } = sandbox.isolation;
  return (
    <div className="panel-body">
      <p className="quiet">
        Isolation level <strong>{level}</strong>, as it was applied when this sandbox was made.
      </p>
      <ul className="layers">
        {layers.map((layer) => (
          <li key={layer.name}>
            <span className={`chip ${layer.state}`}>{layer.state}</span>
            <div>
              <strong>{layer.name}</strong>
              {HOLDS[layer.name] && <p>{HOLDS[layer.name]}</p>}
              {layer.why && <p className="quiet">{visibleLine(layer.why)}</p>}
            </div>
          </li>
        ))}
      </ul>
      <h2>Limits</h2>
      <table className="plain">
        <tbody>
          {Object.entries(sandbox.limits).map(([name, value]) => (
            <tr key={name}>
              <th scope="row">{name.replace(/_(bytes|seconds)$/, "").replaceAll("_", " ")}</th>
              <td>{shown(name, value)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function shown(name: string, value: number | null): string {
  if (value === null) return "none of its own";
  if (name.endsWith("_bytes")) return bytes(value);
  if (name.endsWith("_seconds")) return seconds(value);
  return String(value);
}
