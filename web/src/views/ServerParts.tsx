/** What a server starts sandboxes from and where they live: its templates, and the machines of a cluster. */

import { useQuery } from "@tanstack/react-query";
import { get } from "../api/client";
import { whileItMayAnswer } from "../api/queries";
import type * as api from "../api/schema";
import { bytes, visibleLine } from "../parts/format";
import { ProblemBox } from "../parts/Problems";
import { Age } from "../parts/Times";

export function Templates() {
  const list = useQuery({
    queryKey: ["templates"],
    queryFn: ({ signal }) => get<api.TemplateList>("/v1/templates", signal),
    retry: false,
  });
  const items = list.data?.items ?? [];

  return (
    <section className="card" aria-label="Templates">
      <h2>Templates</h2>
      {list.error && <ProblemBox error={list.error} retry={() => list.refetch()} />}
      {list.data && items.length === 0 && (
        <p className="quiet">
          Only <code>default</code>. <code>fumehood template build</code> makes others.
        </p>
      )}
      {items.length > 0 && (
        <table className="plain">
          <thead>
            <tr>
              <th scope="col">Name</th>
              <th scope="col">Python</th>
              <th scope="col">Imported once</th>
              <th scope="col">Size</th>
              <th scope="col">Built</th>
            </tr>
          </thead>
          <tbody>
            {items.map((each) => (
              <tr key={each.name}>
                <th scope="row">
                  {visibleLine(each.name, 60)}{" "}
                  <code title={each.fingerprint}>{each.fingerprint.slice(0, 8)}</code>
                </th>
                <td>{visibleLine(each.python, 20)}</td>
                <td>{visibleLine(each.preload.join(", "), 200) || "–"}</td>
                <td className="number">{bytes(each.size_bytes)}</td>
                <td>
                  <Age at={each.built_at} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </section>
  );
}

export function Machines() {
  const list = useQuery({
    queryKey: ["machines"],
    queryFn: ({ signal }) => get<api.MachinePage>("/v1/machines", signal),
    refetchInterval: whileItMayAnswer(5000),
    retry: false,
  });
  const items = list.data?.items ?? [];

  return (
    <section className="card" aria-label="Machines">
      <h2>Machines</h2>
      {list.error && <ProblemBox error={list.error} retry={() => list.refetch()} />}
      {items.length > 0 && (
        <table className="plain">
          <thead>
            <tr>
              <th scope="col">Host</th>
              <th scope="col">State</th>
              <th scope="col">Sandboxes</th>
              <th scope="col">Memory left</th>
              <th scope="col">Load</th>
              <th scope="col">Templates</th>
            </tr>
          </thead>
          <tbody>
            {items.map((each) => (
              <MachineRow key={each.host_id} machine={each} />
            ))}
          </tbody>
        </table>
      )}
    </section>
  );
}

function MachineRow({ machine }: { machine: api.MachineInfo }) {
  const { capacity, labels } = machine;
  return (
    <tr>
      <th scope="row">
        <code>{visibleLine(machine.host_id, 60) || "this machine"}</code>
        {Object.entries(labels).map(([name, value]) => (
          <span key={name} className="chip">
            {visibleLine(name, 40)}={visibleLine(value, 40)}
          </span>
        ))}
      </th>
      <td>
        <span className={`chip ${machine.state === "ready" ? "on" : "degraded"}`}>{machine.state}</span>
        {machine.reason && <p className="quiet">{visibleLine(machine.reason, 300)}</p>}
      </td>
      <td>{capacity ? `${capacity.sandboxes} of ${capacity.max_sandboxes}` : "–"}</td>
      <td className="number">{capacity ? bytes(capacity.memory_available_bytes) : "–"}</td>
      <td>{capacity ? `${capacity.load.toFixed(1)} on ${capacity.cpu_cores} processors` : "–"}</td>
      <td>{visibleLine(machine.templates.join(", "), 200) || "default"}</td>
    </tr>
  );
}
