/** The audit record and the network log of a share: entries to read. */

import { useQuery } from "@tanstack/react-query";
import { get } from "../api/client";
import type * as api from "../api/schema";
import type { Page } from "../api/types";
import { bytes, clock, visibleLine } from "../parts/format";
import { ProblemBox } from "../parts/Problems";

type Entry = api.SharedEntry;
type Connection = api.SharedConnection;
const SHOWN = 300;

export function SharedAudit() {
  const log = useQuery({
    queryKey: ["timeline", "shared"],
    queryFn: ({ signal }) => get<Page<Entry>>("/v1/sandboxes/shared/audit", signal),
    retry: false,
  });
  if (log.error && !log.data) return <ProblemBox error={log.error} retry={() => log.refetch()} />;
  if (!log.data) return null;
  const entries = [...log.data.items].reverse();
  return (
    <div className="panel-body">
      <p className="quiet">
        {entries.length.toLocaleString()} entries, the newest first: an extract without hashes, which cannot
        be verified
      </p>
      <ul className="entries">
        {entries.slice(0, SHOWN).map((entry) => (
          <li key={entry.sequence}>
            <span>
              <span className="quiet">{entry.sequence}</span> <strong>{visibleLine(entry.kind, 40)}</strong>
            </span>
            <span className="quiet">{clock(entry.at)}</span>
            <span className="summary">{visibleLine(JSON.stringify(entry.fields), 300)}</span>
          </li>
        ))}
      </ul>
    </div>
  );
}

export function SharedNetwork() {
  const log = useQuery({
    queryKey: ["egress", "shared"],
    queryFn: ({ signal }) => get<Page<Connection>>("/v1/sandboxes/shared/network/log", signal),
    retry: false,
  });
  if (log.error && !log.data) return <ProblemBox error={log.error} retry={() => log.refetch()} />;
  if (!log.data) return null;
  if (log.data.items.length === 0)
    return <p className="quiet panel-body">It has reached nothing, and tried nothing.</p>;
  return (
    <div className="panel-body scrolls" tabIndex={0} role="region" aria-label="Connections">
      <table className="plain">
        <thead>
          <tr>
            <th scope="col">At</th>
            <th scope="col">Host</th>
            <th scope="col">Verdict</th>
            <th scope="col">Rule</th>
            <th scope="col">Bytes</th>
          </tr>
        </thead>
        <tbody>
          {[...log.data.items].reverse().map((each) => (
            <tr key={`${each.at} ${each.name} ${each.port}`}>
              <td>{clock(each.at)}</td>
              <td>
                {visibleLine(each.name, 80)}:{each.port}
              </td>
              <td>{visibleLine(each.verdict, 20)}</td>
              <td>{visibleLine(each.rule, 120)}</td>
              <td className="number">{bytes(each.bytes_sent + each.bytes_received)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
