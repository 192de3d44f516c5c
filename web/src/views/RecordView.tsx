/** The record of a sandbox that has ended: its cells as they were, its audit record, and what they do when they run again. */

import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Tabs } from "radix-ui";
import { useState } from "react";
import { Link, useLocation } from "wouter";
import { get, segment, send } from "../api/client";
import { PlaceContext } from "../api/place";
import type { EndedSandbox } from "../api/records";
import { AuditRecord } from "../panels/Audit";
import { EndedCommands } from "../panels/Commands";
import { Isolation } from "../panels/Isolation";
import { Confirm } from "../parts/Confirm";
import { bytes, duration, seconds, shortId, visibleLine } from "../parts/format";
import { ProblemBox } from "../parts/Problems";
import { useMayAct } from "../parts/rights";
import { State } from "../parts/State";
import { Export } from "./Export";
import { Replay } from "./Replay";
import { Transcript } from "./Transcript";
import { useCells } from "./useCells";

export default function RecordView({ id }: { id: string }) {
  const about = useQuery({
    queryKey: ["record", id],
    queryFn: ({ signal }) => get<EndedSandbox>(`/v1/records/${segment(id)}`, signal),
    retry: false,
  });
  if (about.error)
    return (
      <div className="page">
        <h1>Record</h1>
        <ProblemBox error={about.error} retry={() => about.refetch()} title="There is no such record" />
        <p>
          <Link href="/records">All records</Link>
        </p>
      </div>
    );
  if (!about.data) return <div className="skeleton" />;
  return (
    <PlaceContext.Provider value="records">
      <Kept ended={about.data} />
    </PlaceContext.Provider>
  );
}

function Kept({ ended }: { ended: EndedSandbox }) {
  const { id } = ended.sandbox;
  const [contextId, setContextId] = useState(ended.contexts[0]?.id ?? "default");
  const [chosen, setChosen] = useState<string | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  const mayAct = useMayAct();
  const cells = useCells(id, contextId, true, "records");

  return (
    <div className="page sandbox-page">
      <Head ended={ended}>
        <Export sandboxId={id} contextId={contextId} failed={setProblem} />
        {mayAct && <Delete id={id} />}
      </Head>
      {problem !== null && <ProblemBox error={problem} />}
      {ended.contexts.length > 1 && (
        <label className="row">
          Context
          <select value={contextId} onChange={(event) => setContextId(event.target.value)}>
            {ended.contexts.map((each) => (
              <option key={each.id} value={each.id}>
                {visibleLine(each.id, 60)} ({visibleLine(each.language, 20)})
              </option>
            ))}
          </select>
        </label>
      )}
      <div className="split">
        <div className="main-column">
          <Transcript sandboxId={id} cells={cells} chosen={chosen} choose={setChosen} runs={0} reuse={null} />
        </div>
        <Tabs.Root className="inspector" defaultValue="replay">
          <Tabs.List className="tabs" aria-label="Inspector">
            <Tabs.Trigger value="replay">Replay</Tabs.Trigger>
            <Tabs.Trigger value="commands">Commands</Tabs.Trigger>
            <Tabs.Trigger value="audit">Audit</Tabs.Trigger>
            <Tabs.Trigger value="isolation">Isolation</Tabs.Trigger>
          </Tabs.List>
          <Tabs.Content value="replay" className="panel" forceMount>
            <Replay
              key={contextId}
              ended={ended}
              contextId={contextId}
              cells={cells.cells}
              first={cells.page?.first_position ?? 0}
              choose={setChosen}
            />
          </Tabs.Content>
          <Tabs.Content value="commands" className="panel">
            <EndedCommands sandboxId={id} />
          </Tabs.Content>
          <Tabs.Content value="audit" className="panel">
            <AuditRecord path={`/v1/records/${segment(id)}/audit`} queryKey={["record-audit", id]} />
          </Tabs.Content>
          <Tabs.Content value="isolation" className="panel">
            <Isolation sandbox={ended.sandbox} />
          </Tabs.Content>
        </Tabs.Root>
      </div>
    </div>
  );
}

function Head({ ended, children }: { ended: EndedSandbox; children: React.ReactNode }) {
  const { sandbox } = ended;
  const lived = (Date.parse(ended.ended_at) - Date.parse(sandbox.started_at)) / 1000;
  return (
    <section className="sandbox-head" aria-label="Record">
      <div className="head">
        <h1>
          <Link href="/records">Records</Link> ▸ <code title={sandbox.id}>{shortId(sandbox.id)}</code>
        </h1>
        <State state="ended" />
        <span className="quiet">
          {visibleLine(ended.reason, 40)} on {new Date(ended.ended_at).toLocaleString()} after{" "}
          {duration(lived)} · {visibleLine(sandbox.template, 40)} · {ended.cells} cells, {ended.failed} failed
          · CPU {seconds(ended.cpu_seconds)} · {bytes(ended.peak_memory_bytes)} · key {shortId(sandbox.owner)}
        </span>
        <span className="acts">{children}</span>
      </div>
    </section>
  );
}

function Delete({ id }: { id: string }) {
  const [, go] = useLocation();
  const queries = useQueryClient();
  return (
    <Confirm
      trigger={<button type="button">Delete</button>}
      title={`Delete the record of ${shortId(id)}?`}
      act="Delete"
      run={() => send("DELETE", `/v1/records/${segment(id)}`)}
      done={() => {
        queries.invalidateQueries({ queryKey: ["records"] });
        go("/records");
      }}
    >
      What ran in it cannot be looked at any more. This cannot be undone.
    </Confirm>
  );
}
