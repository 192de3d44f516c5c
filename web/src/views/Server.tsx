/** The server itself: each setting and where it came from, and the security events since its start; for its owner. */

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { get } from "../api/client";
import { whileItMayAnswer } from "../api/queries";
import type * as api from "../api/schema";
import type { Page } from "../api/types";
import { AuditRecord } from "../panels/Audit";
import { visibleLine } from "../parts/format";
import { Empty, ProblemBox } from "../parts/Problems";
import { Machines, Templates } from "./ServerParts";

export type Setting = api.DescribedSetting;
type EventCounts = api.SecurityEventCounts;

export default function Server() {
  return (
    <div className="page scrolling">
      <h1>Server</h1>
      <Events />
      <Machines />
      <Templates />
      <Machine />
      <section className="card" aria-label="Audit record">
        <h2>Audit record of the server</h2>
        <p className="quiet">
          Logins, keys, shares, and sandboxes that were killed by another than the key that owns them. With an
          audit folder all of it is in a file; without one it ends with the server.
        </p>
        <AuditRecord path="/v1/audit" queryKey={["server-audit"]} />
      </section>
      <Settings />
    </div>
  );
}

function Events() {
  const events = useQuery({
    queryKey: ["security-events"],
    queryFn: ({ signal }) => get<EventCounts>("/v1/security-events", signal),
    refetchInterval: whileItMayAnswer(5000),
    retry: false,
  });
  const items = events.data?.items ?? [];

  return (
    <section className="card" aria-label="Security events">
      <h2>Security events since the start</h2>
      {events.isPending && <div className="skeleton" />}
      {events.error && <ProblemBox error={events.error} retry={() => events.refetch()} />}
      {events.data?.are_counted === false && (
        <p className="note">
          Another process keeps the sandboxes: a host daemon, or the machines of a cluster. It counts them in
          metrics of its own.
        </p>
      )}
      {events.data?.are_counted && items.length === 0 && <p className="quiet">No sandbox has caused one.</p>}
      {items.length > 0 && (
        <table className="plain">
          <thead>
            <tr>
              <th scope="col">Kind</th>
              <th scope="col">What was done</th>
              <th scope="col">How often</th>
            </tr>
          </thead>
          <tbody>
            {items.map((each) => (
              <tr key={`${each.kind} ${each.action}`}>
                <td>{visibleLine(each.kind, 60)}</td>
                <td>{visibleLine(each.action, 60)}</td>
                <td className="number">{each.count.toLocaleString()}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </section>
  );
}

type Machine = api.MachineRows;

/** It tries every layer anew, which takes seconds: only when it is asked for. */
function Machine() {
  const rows = useQuery({
    queryKey: ["doctor"],
    queryFn: ({ signal }) => get<Machine>("/v1/doctor", signal),
    enabled: false,
    retry: false,
  });

  return (
    <section className="card" aria-label="Machine">
      <div className="row">
        <h2>What the machine offers</h2>
        <button type="button" disabled={rows.isFetching} onClick={() => rows.refetch()}>
          {rows.isFetching ? "Trying each layer…" : "Examine"}
        </button>
      </div>
      <p className="quiet">
        Each layer of isolation, tried anew, and a first sandbox: as <code>fumehood doctor</code>.
      </p>
      {rows.error && <ProblemBox error={rows.error} retry={() => rows.refetch()} />}
      {rows.data?.is_of_sandboxes === false && (
        <p className="note">
          The sandboxes live in another process, maybe on another machine: run <code>fumehood doctor</code>{" "}
          there.
        </p>
      )}
      {rows.data && (
        <table className="plain">
          <thead>
            <tr>
              <th scope="col">Layer</th>
              <th scope="col">State</th>
              <th scope="col">What was found</th>
            </tr>
          </thead>
          <tbody>
            {rows.data.items.map((row) => (
              <tr key={row.name}>
                <th scope="row">{visibleLine(row.name, 60)}</th>
                <td>
                  <span className={`chip ${row.state === "there" ? "on" : row.state}`}>{row.state}</span>{" "}
                  <span className="quiet">{row.need}</span>
                </td>
                <td>
                  {visibleLine(row.why, 500)}
                  {row.how_to_get_it && <p className="quiet">{visibleLine(row.how_to_get_it, 500)}</p>}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </section>
  );
}

function Settings() {
  const [words, setWords] = useState("");
  const [isChanged, setChanged] = useState(false);
  const list = useQuery({
    queryKey: ["settings"],
    queryFn: ({ signal }) => get<Page<Setting>>("/v1/settings", signal),
    retry: false,
  });
  const found = chosenOf(list.data?.items ?? [], words, isChanged);
  const groups = [...new Set(found.map((each) => each.group))];

  return (
    <section className="card" aria-label="Settings">
      <div className="row">
        <h2>Settings</h2>
        <input
          type="search"
          aria-label="Filter settings"
          placeholder="name or purpose"
          value={words}
          onChange={(event) => setWords(event.target.value)}
        />
        <label className="check">
          <input type="checkbox" checked={isChanged} onChange={(event) => setChanged(event.target.checked)} />{" "}
          only those that were given
        </label>
      </div>
      <p className="quiet">As they were when the server started; secrets are not shown.</p>
      {list.isPending && <div className="skeleton" />}
      {list.error && <ProblemBox error={list.error} retry={() => list.refetch()} />}
      {list.data && found.length === 0 && <Empty title="No setting fits this." />}
      {groups.map((group) => (
        <table key={group} className="plain">
          <caption>{group || "engine"}</caption>
          <thead>
            <tr>
              <th scope="col">Setting</th>
              <th scope="col">Value</th>
              <th scope="col">From</th>
            </tr>
          </thead>
          <tbody>
            {found
              .filter((each) => each.group === group)
              .map((each) => (
                <tr key={each.name}>
                  <th scope="row">
                    <code>{each.name}</code>
                    <p className="quiet">{each.help}</p>
                  </th>
                  <td>
                    <code>{visibleLine(each.value, 500)}</code>
                  </td>
                  <td>{each.source === "default" ? "default" : <code>{each.origin}</code>}</td>
                </tr>
              ))}
          </tbody>
        </table>
      ))}
    </section>
  );
}

/** The settings with these words in name or purpose; with `isChanged` only those that somebody gave. */
export function chosenOf(all: Setting[], words: string, isChanged: boolean): Setting[] {
  const wanted = words.trim().toLowerCase();
  return all
    .filter((each) => !isChanged || each.source !== "default")
    .filter((each) => `${each.name} ${each.help}`.toLowerCase().includes(wanted));
}
