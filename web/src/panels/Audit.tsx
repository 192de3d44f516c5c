/** The audit record: what happened, entry by entry, and whether its chain is whole. */

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { ask, get, segment } from "../api/client";
import type * as api from "../api/schema";
import type { AuditEntry } from "../api/types";
import { verifyBeside } from "../audit/start";
import type { Head, Verdict } from "../audit/verify";
import { clock, visibleLine } from "../parts/format";
import { ProblemBox } from "../parts/Problems";
import { Download } from "../results/Picture";

type Log = api.AuditLog;
const SHOWN = 300;

export function AuditPanel({ sandboxId }: { sandboxId: string }) {
  return (
    <AuditRecord path={`/v1/sandboxes/${segment(sandboxId)}/audit`} queryKey={["timeline", sandboxId]} />
  );
}

/** The record at an address: of a sandbox, or of the server itself. */
export function AuditRecord({ path, queryKey }: { path: string; queryKey: string[] }) {
  const [kind, setKind] = useState("");
  const [isRaw, setRaw] = useState<number | null>(null);
  const log = useQuery({
    queryKey,
    queryFn: ({ signal }) => get<Log>(path, signal),
    retry: false,
  });
  if (log.error && !log.data) return <ProblemBox error={log.error} retry={() => log.refetch()} />;
  if (!log.data) return null;

  const kinds = [...new Set(log.data.entries.map((entry) => entry.kind))].sort();
  const entries = log.data.entries.filter((entry) => !kind || entry.kind === kind).reverse();

  return (
    <div className="panel-body">
      <Verification path={path} />
      <div className="row">
        <select aria-label="Kind of entry" value={kind} onChange={(event) => setKind(event.target.value)}>
          <option value="">all kinds</option>
          {kinds.map((each) => (
            <option key={each}>{each}</option>
          ))}
        </select>
        <span className="quiet">{entries.length.toLocaleString()} entries, the newest first</span>
      </div>
      {log.data.dropped > 0 && (
        <p className="note">{log.data.dropped.toLocaleString()} older entries are no longer in memory.</p>
      )}
      <ul className="entries">
        {entries.slice(0, SHOWN).map((entry) => (
          <li key={entry.sequence}>
            <button
              type="button"
              className="link"
              aria-expanded={isRaw === entry.sequence}
              onClick={() => setRaw(isRaw === entry.sequence ? null : entry.sequence)}
            >
              <span className="quiet">{entry.sequence}</span> <strong>{visibleLine(entry.kind, 40)}</strong>
            </button>
            <span className="quiet">{clock(entry.at)}</span>
            <span className="summary">{summary(entry)}</span>
            {isRaw === entry.sequence && (
              <pre className="plain-text">{visibleLine(JSON.stringify(entry.fields), 4000)}</pre>
            )}
          </li>
        ))}
      </ul>
      {entries.length > SHOWN && (
        <p className="quiet">{(entries.length - SHOWN).toLocaleString()} more are in the file.</p>
      )}
    </div>
  );
}

function Verification({ path }: { path: string }) {
  const [head, setHead] = useState("");
  const [verdict, setVerdict] = useState<Verdict | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  const [lines, setLines] = useState<Uint8Array<ArrayBuffer> | null>(null);

  const check = async (text: string) => {
    setProblem(null);
    setVerdict(await verifyBeside(text, headOf(head)));
  };
  const living = async () => {
    try {
      const answer = await ask(`${path}?form=lines`, { accept: "*/*" });
      const text = await answer.text();
      setLines(new TextEncoder().encode(text));
      await check(text);
    } catch (error) {
      setProblem(error);
    }
  };

  return (
    <section className="verification" aria-label="Verification">
      <div className="row">
        <button type="button" className="primary" onClick={living}>
          Verify
        </button>
        <label className="button">
          Verify a file
          <input
            type="file"
            className="unseen"
            onChange={async (event) => {
              const file = event.target.files?.[0];
              if (file) check(await file.text()).catch(setProblem);
            }}
          />
        </label>
        <input
          aria-label="A head that was kept elsewhere, as SEQUENCE:HASH"
          placeholder="kept head, SEQUENCE:HASH"
          value={head}
          onChange={(event) => setHead(event.target.value)}
        />
        {lines && <Download content={lines} type="application/x-ndjson" name="audit.jsonl" />}
      </div>
      {verdict && <VerdictLine verdict={verdict} />}
      {problem !== null && <ProblemBox error={problem} />}
    </section>
  );
}

function VerdictLine({ verdict }: { verdict: Verdict }) {
  if (!verdict.ok) {
    return (
      <p className="banner bad-banner" role="status">
        <strong>Broken at line {verdict.line}:</strong> {verdict.why}.
      </p>
    );
  }
  const { headHolds, entries, head, first } = verdict;
  return (
    <p className={headHolds === false ? "banner bad-banner" : "banner good-banner"} role="status">
      <strong>Whole:</strong> {entries.toLocaleString()} entries{first > 0 ? `, from ${first} on` : ""}, each
      follows the one before.{" "}
      {headHolds === null &&
        "Without a head that was kept elsewhere it is not proven that none were cut off or written anew. "}
      {headHolds === true && "The kept head is one of them. "}
      {headHolds === false && "The kept head is NOT one of them: this is another record. "}
      Head{" "}
      <code>
        {head.sequence}:{head.hash.slice(0, 16)}…
      </code>
    </p>
  );
}

function headOf(text: string): Head | null {
  const found = /^\s*(\d+)\s*:\s*([0-9a-f]{64})\s*$/.exec(text);
  return found ? { sequence: Number(found[1]), hash: found[2] ?? "" } : null;
}

function summary(entry: AuditEntry): string {
  const { fields } = entry;
  const told = [
    "outcome",
    "error",
    "verb",
    "checkpoint",
    "context",
    "execution",
    "children",
    "path",
    "reason",
    "host",
    "command",
    "key_id",
    "share_id",
    "sandbox_id",
    "by",
    "means",
    "version",
  ]
    .filter((name) => fields[name] !== undefined)
    .map((name) => (typeof fields[name] === "string" ? fields[name] : JSON.stringify(fields[name])));
  return visibleLine(told.join(" · "), 160);
}
