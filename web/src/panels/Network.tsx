/** What a sandbox may reach, what it reached and tried to reach, and the rule that decided. */

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { get, segment } from "../api/client";
import type * as api from "../api/schema";
import type { Sandbox } from "../api/types";
import { bytes, clock, visibleLine } from "../parts/format";
import { Empty, ProblemBox } from "../parts/Problems";

type Egress = api.EgressRecord;
const MOST_ROWS = 500;

export function NetworkPanel({ sandbox }: { sandbox: Sandbox }) {
  const [filter, setFilter] = useState("");
  const [onlyDenied, setOnlyDenied] = useState(false);
  const log = useQuery({
    queryKey: ["egress", sandbox.id],
    queryFn: ({ signal }) =>
      get<{ items: Egress[] }>(`/v1/sandboxes/${segment(sandbox.id)}/network/log`, signal),
    retry: false,
  });
  const all = log.data?.items ?? [];
  const used = all.reduce((sum, each) => sum + each.bytes_sent + each.bytes_received, 0);
  const found = all
    .filter((each) => !onlyDenied || each.verdict === "denied")
    .filter((each) => `${each.name} ${each.address ?? ""} ${each.rule}`.includes(filter.trim()))
    .reverse();

  return (
    <div className="panel-body">
      <Rules sandbox={sandbox} used={used} />
      <h2>Connections</h2>
      {log.error && <ProblemBox error={log.error} retry={() => log.refetch()} />}
      {log.data && all.length === 0 && (
        <Empty title="It has tried no connection.">
          <p>Each one appears here, with the rule that let it through or held it.</p>
        </Empty>
      )}
      {all.length > 0 && (
        <>
          <div className="row">
            <input
              type="search"
              aria-label="Filter connections"
              placeholder="host or rule"
              value={filter}
              onChange={(event) => setFilter(event.target.value)}
            />
            <label className="row">
              <input
                type="checkbox"
                checked={onlyDenied}
                onChange={(event) => setOnlyDenied(event.target.checked)}
              />
              only denied
            </label>
          </div>
          <table className="plain connections">
            <thead>
              <tr>
                <th scope="col">Verdict</th>
                <th scope="col">Host, and the rule that decided</th>
                <th scope="col">When</th>
              </tr>
            </thead>
            <tbody>
              {found.slice(0, MOST_ROWS).map((each, index) => (
                // biome-ignore lint/suspicious/noArrayIndexKey: connections have no name
                <tr key={index}>
                  <td className={each.verdict === "allowed" ? "good" : "bad"}>
                    {each.verdict === "allowed" ? "✓ allowed" : "✗ denied"}
                  </td>
                  <td>
                    <code>
                      {visibleLine(each.name, 80)}:{each.port}
                    </code>
                    {each.address && each.address !== each.name && (
                      <span className="quiet"> {visibleLine(each.address, 50)}</span>
                    )}
                    <p className="deciding">{visibleLine(each.rule, 120)}</p>
                    {each.verdict === "allowed" && (
                      <p className="quiet">
                        {bytes(each.bytes_sent)} out, {bytes(each.bytes_received)} in
                      </p>
                    )}
                  </td>
                  <td className="quiet">
                    <time dateTime={each.at} title={each.at}>
                      {clock(each.at)}
                    </time>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
          {found.length > MOST_ROWS && (
            <p className="quiet">{found.length - MOST_ROWS} older ones are not shown.</p>
          )}
        </>
      )}
    </div>
  );
}

function Rules({ sandbox, used }: { sandbox: Sandbox; used: number }) {
  const { allow, deny, internet, presets, hosts, secrets, max_bytes } = sandbox.network;
  const rows: [string, string[]][] = [
    [
      "Allowed",
      [...(internet ? ["the public internet"] : []), ...presets.map((name) => `preset ${name}`), ...allow],
    ],
    ["Denied", deny],
    ["Names of its own", Object.entries(hosts).map(([name, address]) => `${name} → ${address}`)],
    ["Secrets for", Object.keys(secrets)],
  ];
  return (
    <table className="plain">
      <tbody>
        {rows
          .filter(([name, items]) => name === "Allowed" || items.length > 0)
          .map(([name, items]) => (
            <tr key={name}>
              <th scope="row">{name}</th>
              <td>
                {items.length === 0
                  ? "nothing: it has no network"
                  : items.map((item) => (
                      <code key={item} className="rule">
                        {visibleLine(item, 120)}
                      </code>
                    ))}
              </td>
            </tr>
          ))}
        <tr>
          <th scope="row">Bytes</th>
          <td>
            {bytes(used)} of {bytes(max_bytes)}
          </td>
        </tr>
      </tbody>
    </table>
  );
}
