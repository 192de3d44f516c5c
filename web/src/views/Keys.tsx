/** The keys of the server: what each may do, what it has used today, and its end. */

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Dialog } from "radix-ui";
import { type FormEvent, useState } from "react";
import { get, segment, send } from "../api/client";
import type * as api from "../api/schema";
import type { Bound, Page } from "../api/types";
import { Confirm } from "../parts/Confirm";
import { visibleLine } from "../parts/format";
import { copy } from "../parts/hooks";
import { Empty, ProblemBox } from "../parts/Problems";

type Key = api.Key;
type KeyUse = Record<"sandboxes" | "executions_at_once" | "executions_today" | "cpu_seconds_today", Bound>;
type Made = api.KeyWithToken;
const SCOPES = ["execute", "sandboxes", "keys", "metrics", "watch"];
const BOUNDS = [
  ["max_sandboxes", "Sandboxes at once"],
  ["max_concurrent_executions", "Executions at once"],
  ["executions_per_day", "Executions a day"],
  ["cpu_seconds_per_day", "CPU seconds a day"],
] as const;

export default function Keys() {
  const queries = useQueryClient();
  const [made, setMade] = useState<Made | null>(null);
  const [isAll, setAll] = useState(false);
  const list = useQuery({
    queryKey: ["keys"],
    queryFn: ({ signal }) => get<Page<Key>>("/v1/keys", signal),
    refetchInterval: 10_000,
  });
  const changed = () => queries.invalidateQueries({ queryKey: ["keys"] });
  const keys = (list.data?.items ?? []).filter((key) => isAll || key.revoked_at === null);

  return (
    <div className="page scrolling">
      <div className="head">
        <h1>Keys</h1>
        <label className="check">
          <input type="checkbox" checked={isAll} onChange={(event) => setAll(event.target.checked)} /> revoked
          ones too
        </label>
        <span className="acts">
          <NewKey
            made={(given) => {
              setMade(given);
              changed();
            }}
          />
        </span>
      </div>
      {made && <Token made={made} done={() => setMade(null)} />}
      {list.error && <ProblemBox error={list.error} retry={() => list.refetch()} />}
      {list.data && keys.length === 0 && (
        <Empty title="There is no key yet.">
          <p>The owner's token does everything. A key is for one program or colleague, within bounds.</p>
        </Empty>
      )}
      <ul className="cards">
        {keys.map((key) => (
          <KeyCard key={key.id} of={key} changed={changed} rotated={setMade} />
        ))}
      </ul>
    </div>
  );
}

function KeyCard({ of, changed, rotated }: { of: Key; changed: () => void; rotated: (made: Made) => void }) {
  const isOver =
    of.revoked_at !== null || (!!of.policy.expires_at && Date.parse(of.policy.expires_at) < Date.now());
  const use = useQuery({
    queryKey: ["keys", of.id, "use"],
    queryFn: ({ signal }) => get<KeyUse>(`/v1/keys/${segment(of.id)}/use`, signal),
    enabled: !isOver,
    refetchInterval: 10_000,
    retry: false,
  });

  return (
    <li className="card">
      <div className="row">
        <h2>{visibleLine(of.name, 80) || <span className="quiet">no name</span>}</h2>
        <code className="quiet">{of.id}</code>
        {of.revoked_at && <span className="chip off">revoked</span>}
        {!of.revoked_at && isOver && <span className="chip off">expired</span>}
        {of.scopes.map((scope) => (
          <span key={scope} className="chip">
            {scope}
          </span>
        ))}
        {!isOver && (
          <span className="acts">
            <Confirm
              trigger={<button type="button">Rotate</button>}
              title={`A new token for ${visibleLine(of.name, 40) || of.id}?`}
              act="Make a new token"
              run={async () => rotated(await send<Made>("POST", `/v1/keys/${segment(of.id)}/rotate`, {}))}
              done={changed}
            >
              Programs with the earlier token are refused once its grace is over.
            </Confirm>
            <Confirm
              trigger={<button type="button">Revoke</button>}
              title={`Revoke ${visibleLine(of.name, 40) || of.id}?`}
              act="Revoke"
              run={() => send("DELETE", `/v1/keys/${segment(of.id)}`)}
              done={changed}
            >
              Its programs are refused from now on
              {use.data ? `; ${use.data.sandboxes.used} of its sandboxes live on until their end` : ""}.
            </Confirm>
          </span>
        )}
      </div>
      {use.data && (
        <dl className="bounds">
          <BoundView name="Sandboxes" of={use.data.sandboxes} />
          <BoundView name="Executions now" of={use.data.executions_at_once} />
          <BoundView name="Executions today" of={use.data.executions_today} />
          <BoundView name="CPU seconds today" of={use.data.cpu_seconds_today} />
        </dl>
      )}
      <p className="quiet">
        made {new Date(of.created_at).toLocaleString()},{" "}
        {of.last_used_at ? `last used ${new Date(of.last_used_at).toLocaleString()}` : "never used"}
        {of.policy.expires_at && `, ends ${new Date(of.policy.expires_at).toLocaleString()}`}
      </p>
    </li>
  );
}

export function BoundView({ name, of }: { name: string; of: Bound }) {
  const used = Number.isInteger(of.used) ? of.used.toLocaleString() : of.used.toFixed(1);
  return (
    <div>
      <dt>{name}</dt>
      <dd>
        {used}
        {of.maximum === null ? "" : ` of ${of.maximum.toLocaleString()}`}
        {of.maximum !== null && of.maximum > 0 && (
          <meter
            min={0}
            max={1}
            high={0.9}
            value={Math.min(1, of.used / of.maximum)}
            aria-label={`${name}: ${used} of ${of.maximum}`}
          />
        )}
      </dd>
    </div>
  );
}

function Token({ made, done }: { made: Made; done: () => void }) {
  return (
    <div className="banner" role="status">
      <p>
        <strong>The token of {visibleLine(made.key.name, 60) || made.key.id}, shown this once:</strong>
      </p>
      <p>
        <code className="whole-address">{made.token}</code>
      </p>
      <div className="row">
        <button type="button" className="primary" onClick={() => copy(made.token)}>
          Copy
        </button>
        <button type="button" onClick={done}>
          I have it
        </button>
      </div>
    </div>
  );
}

function NewKey({ made }: { made: (key: Made) => void }) {
  const [isOpen, setOpen] = useState(false);
  const make = useMutation({
    mutationFn: (body: unknown) => send<Made>("POST", "/v1/keys", body),
    onSuccess: (key) => {
      setOpen(false);
      made(key);
    },
  });
  const submit = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    const policy: Record<string, number> = {};
    for (const [name] of BOUNDS) {
      const text = String(form.get(name) ?? "").trim();
      if (text) policy[name] = Number(text);
    }
    make.mutate({
      name: form.get("name"),
      scopes: SCOPES.filter((scope) => form.get(`scope-${scope}`)),
      policy,
    });
  };

  return (
    <Dialog.Root open={isOpen} onOpenChange={setOpen}>
      <Dialog.Trigger asChild>
        <button type="button" className="primary">
          New key
        </button>
      </Dialog.Trigger>
      <Dialog.Portal>
        <Dialog.Overlay className="overlay" />
        <Dialog.Content className="dialog" aria-describedby={undefined}>
          <Dialog.Title>New key</Dialog.Title>
          <form className="form" onSubmit={submit}>
            <label>
              Name
              <input name="name" maxLength={200} required />
            </label>
            <fieldset className="row">
              <legend>It may use</legend>
              {SCOPES.map((scope) => (
                <label key={scope} className="check">
                  <input
                    type="checkbox"
                    name={`scope-${scope}`}
                    defaultChecked={scope === "execute" || scope === "sandboxes"}
                  />{" "}
                  {scope}
                </label>
              ))}
            </fieldset>
            {BOUNDS.map(([name, label]) => (
              <label key={name}>
                {label}
                <input name={name} type="number" min={1} placeholder="no bound" />
              </label>
            ))}
            {make.error && <ProblemBox error={make.error} title="No key was made" />}
            <div className="row end">
              <Dialog.Close>Cancel</Dialog.Close>
              <button type="submit" className="primary" disabled={make.isPending}>
                Make the key
              </button>
            </div>
          </form>
        </Dialog.Content>
      </Dialog.Portal>
    </Dialog.Root>
  );
}
