/** The files of a sandbox: folders one by one, a look into a file, up- and download. */

import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useRef, useState } from "react";
import { ask, get, segment, send } from "../api/client";
import { asProblem } from "../api/problem";
import { isShare } from "../api/reader";
import type * as api from "../api/schema";
import { Confirm } from "../parts/Confirm";
import { bytes, visible, visibleLine } from "../parts/format";
import { ProblemBox } from "../parts/Problems";
import { Download, Raster } from "../results/Picture";
import { type Draft, draftOf, draftsOf, dropDraft, keepDraft } from "./drafts";
import { Naming } from "./Naming";

type FileInfo = api.FileInfo;
const HOME = "/home/user";
// No path.
const NEW_FOLDER = "";
const PREVIEW_BYTES = 256 * 1024;
const PICTURE_BYTES = 20 * 1024 * 1024;

export function FilesPanel({ sandboxId }: { sandboxId: string }) {
  const queries = useQueryClient();
  const [folder, setFolder] = useState(HOME);
  const [chosen, setChosen] = useState<FileInfo | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  const [naming, setNaming] = useState<string | null>(null);
  const begunBy = useRef<HTMLElement | null>(null);
  const base = `/v1/sandboxes/${segment(sandboxId)}/files`;
  const list = useQuery({
    queryKey: ["files", sandboxId, folder],
    queryFn: ({ signal }) => get<{ items: FileInfo[] }>(`${base}?path=${segment(folder)}`, signal),
    retry: false,
    staleTime: 0,
  });
  const refresh = () => queries.invalidateQueries({ queryKey: ["files", sandboxId] });
  const upload = async (files: FileList | null) => {
    setProblem(null);
    try {
      for (const file of files ?? []) {
        await ask(`${base}/content?path=${segment(`${folder}/${file.name}`)}`, { method: "PUT", body: file });
      }
    } catch (error) {
      setProblem(error);
    }
    refresh();
  };
  const name = (what: string) => {
    begunBy.current = document.activeElement as HTMLElement | null;
    setNaming(what);
  };
  const named = () => {
    setNaming(null);
    refresh();
    // What was renamed has another button: the list has the focus then.
    const back = begunBy.current;
    requestAnimationFrame(() => (back?.isConnected ? back : body.current)?.focus());
  };
  const rename = async (item: FileInfo, wanted: string) => {
    if (draftOf(sandboxId, item.path)) throw new Error("Save or cancel what you have typed for it first.");
    await send("POST", `${base}/rename`, { source: item.path, destination: joined(folder, wanted) });
    if (chosen?.path === item.path) setChosen(null);
  };
  const taken = (list.data?.items ?? []).map((item) => item.name);
  const body = useRef<HTMLDivElement>(null);
  const items = [...(list.data?.items ?? [])].sort(
    (one, other) =>
      Number(other.type === "dir") - Number(one.type === "dir") || one.name.localeCompare(other.name),
  );

  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: files can be dropped here, and chosen by the button as well
    <div
      className="panel-body"
      ref={body}
      tabIndex={-1}
      onDragOver={(event) => event.preventDefault()}
      onDrop={(event) => {
        event.preventDefault();
        if (!isShare()) upload(event.dataTransfer.files);
      }}
    >
      <div className="row">
        <Trail folder={folder} open={setFolder} />
        {!isShare() && (
          <button type="button" onClick={() => name(NEW_FOLDER)}>
            New folder
          </button>
        )}
        {!isShare() && (
          <label className="button">
            Upload
            <input type="file" multiple className="unseen" onChange={(event) => upload(event.target.files)} />
          </label>
        )}
      </div>
      {naming === NEW_FOLDER && (
        <Naming
          label="Name of the new folder"
          act="Make it"
          taken={taken}
          run={(wanted) => send("POST", `${base}/directories`, { path: joined(folder, wanted) })}
          close={named}
        />
      )}
      {problem !== null && <ProblemBox error={problem} title="It was not uploaded" />}
      {list.error && <ProblemBox error={list.error} retry={() => list.refetch()} />}
      {list.data && items.length === 0 && (
        <p className="quiet">This folder is empty.{!isShare() && " Drop files here to upload them."}</p>
      )}
      <ul className="files">
        {items.map((item) => (
          <li key={item.path} className={chosen?.path === item.path ? "chosen" : undefined}>
            <button
              type="button"
              className="link"
              onClick={() => (item.type === "dir" ? setFolder(item.path) : setChosen(item))}
            >
              <span aria-hidden="true">
                {item.type === "dir" ? "▸" : item.type === "symlink" ? "↪" : "·"}
              </span>{" "}
              {visibleLine(item.name, 120)}
              {item.type === "dir" && "/"}
            </button>
            <span className="quiet">{item.type === "file" ? bytes(item.size_bytes) : item.type}</span>
            {!isShare() && (
              <button
                type="button"
                className="subtle small"
                aria-label={`Rename ${visibleLine(item.name, 120)}`}
                onClick={() => name(item.path)}
              >
                Rename
              </button>
            )}
            {!isShare() && (
              <Confirm
                trigger={
                  <button
                    type="button"
                    className="subtle small"
                    aria-label={`Delete ${visibleLine(item.name, 120)}`}
                  >
                    Delete
                  </button>
                }
                title={`Delete ${visibleLine(item.name, 60)}?`}
                act="Delete"
                run={() => send("DELETE", `${base}?path=${segment(item.path)}`)}
                done={() => {
                  // What is being typed for it stays, and can be copied.
                  if (chosen?.path === item.path && !draftOf(sandboxId, item.path)) setChosen(null);
                  refresh();
                }}
              >
                {item.type === "dir"
                  ? "All that is in the folder goes with it."
                  : "Only an earlier checkpoint still has it."}
              </Confirm>
            )}
            {naming === item.path && (
              <Naming
                label={`New name of ${visibleLine(item.name, 80)}`}
                act="Rename it"
                start={item.name}
                taken={taken}
                run={(wanted) => rename(item, wanted)}
                close={named}
              />
            )}
          </li>
        ))}
      </ul>
      <Unsaved
        drafts={draftsOf(sandboxId).filter(({ file }) => file.path !== chosen?.path)}
        open={(file) => setChosen(file)}
      />
      {chosen && (
        <Preview
          key={chosen.path + chosen.modified_at}
          base={base}
          file={chosen}
          sandboxId={sandboxId}
          changed={refresh}
        />
      )}
    </div>
  );
}

function joined(folder: string, name: string): string {
  return `${folder === "/" ? "" : folder}/${name}`;
}

function Unsaved({ drafts, open }: { drafts: Draft[]; open: (file: FileInfo) => void }) {
  if (drafts.length === 0) return null;
  return (
    <p className="note">
      Not saved yet:{" "}
      {drafts.map(({ file }) => (
        <button key={file.path} type="button" className="link" onClick={() => open(file)}>
          {visibleLine(file.path, 120)}
        </button>
      ))}
    </p>
  );
}

function Trail({ folder, open }: { folder: string; open: (folder: string) => void }) {
  const parts = folder.split("/").filter(Boolean);
  return (
    <nav className="trail" aria-label="Folder">
      {!isShare() && (
        <button type="button" className="link" onClick={() => open("/")}>
          /
        </button>
      )}
      {parts.map((part, index) => {
        // A share shows what is below the home directory.
        if (isShare() && index === 0) return null;
        const path = `/${parts.slice(0, index + 1).join("/")}`;
        return (
          <button
            key={path}
            type="button"
            className="link"
            onClick={() => open(path)}
            aria-current={index === parts.length - 1 ? "true" : undefined}
          >
            {visibleLine(part, 40)}/
          </button>
        );
      })}
    </nav>
  );
}

type PreviewGiven = { base: string; file: FileInfo; sandboxId: string; changed: () => void };

function Preview({ base, file, sandboxId, changed }: PreviewGiven) {
  // As it was when the editing began: what code writes meanwhile is read again, and must not count as seen.
  const [edited, setEdited] = useState(() => draftOf(sandboxId, file.path)?.read ?? null);
  const kind = /\.png$/i.test(file.name) ? "image/png" : /\.jpe?g$/i.test(file.name) ? "image/jpeg" : null;
  const isPicture = kind !== null && file.size_bytes <= PICTURE_BYTES;
  const address = `${base}/content?path=${segment(file.path)}`;
  const content = useQuery({
    queryKey: ["files", sandboxId, "content", file.path, file.modified_at],
    queryFn: async ({ signal }) => {
      const answer = await ask(address, { signal, accept: "*/*" });
      return isPicture ? new Uint8Array(await answer.arrayBuffer()) : await beginning(answer);
    },
    retry: false,
    refetchOnWindowFocus: false,
  });
  const [whole, setWhole] = useState<Uint8Array<ArrayBuffer> | null>(null);
  const bytesOf = content.data;
  const editable =
    bytesOf && !isShare() && !isPicture && file.size_bytes <= PREVIEW_BYTES ? editableText(bytesOf) : null;

  return (
    <section className="detail" aria-label={`File ${visibleLine(file.name, 120)}`}>
      <div className="row">
        <h2>{visibleLine(file.name, 80)}</h2>
        <span className="quiet">{bytes(file.size_bytes)}</span>
        {whole ? (
          <Download content={whole} type="application/octet-stream" name={file.name} />
        ) : (
          <button
            type="button"
            className="subtle"
            onClick={async () => {
              const answer = await ask(address, { accept: "*/*" });
              setWhole(new Uint8Array(await answer.arrayBuffer()));
            }}
          >
            Get it
          </button>
        )}
        {editable && !edited && (
          <button type="button" className="subtle" onClick={() => setEdited(editable)}>
            Edit
          </button>
        )}
      </div>
      {content.error && <ProblemBox error={content.error} />}
      {bytesOf && isPicture && <Raster base64={encoded(bytesOf)} type={kind} />}
      {edited && (
        <FileEditor
          address={address}
          file={file}
          sandboxId={sandboxId}
          text={edited}
          close={(isSaved) => {
            dropDraft(sandboxId, file.path);
            setEdited(null);
            if (!isSaved) return;
            content.refetch();
            changed();
          }}
        />
      )}
      {bytesOf && !isPicture && !edited && <pre className="plain-text">{shown(bytesOf)}</pre>}
      {bytesOf && !isPicture && file.size_bytes > PREVIEW_BYTES && (
        <p className="quiet">The first {bytes(PREVIEW_BYTES)} are shown.</p>
      )}
    </section>
  );
}

type EditorGiven = {
  address: string;
  file: FileInfo;
  sandboxId: string;
  text: EditableText;
  close: (isSaved: boolean) => void;
};

/** A text file in a field; it is written whole, unless code has changed it since it was read. */
function FileEditor({ address, file, sandboxId, text, close }: EditorGiven) {
  const [now, setNow] = useState(draftOf(sandboxId, file.path)?.now ?? text.lines);
  const [problem, setProblem] = useState<unknown>(null);
  const [isSaving, setSaving] = useState(false);
  const isUnknown = problem !== null && asProblem(problem).isOutcomeUnknown;
  const read = async () =>
    editableText(await beginning(await ask(address, { accept: "*/*" }), PREVIEW_BYTES + 1));
  const look = async () => {
    try {
      if ((await read())?.lines === now) close(true);
      else setProblem(new Error("The file does not hold your text."));
    } catch (error) {
      setProblem(error);
    }
  };
  const save = async () => {
    setSaving(true);
    try {
      const before = await read();
      if (before?.lines !== text.lines || before.ending !== text.ending)
        throw new Error("The file has changed since it was read: copy your text, and open the file again.");
      await ask(address, { method: "PUT", body: new Blob([now.replaceAll("\n", text.ending)]) });
      close(true);
    } catch (error) {
      setProblem(error);
      setSaving(false);
    }
  };

  return (
    <form
      className="file-editor"
      onSubmit={(event) => {
        event.preventDefault();
        save();
      }}
    >
      <textarea
        aria-label={`Text of ${visibleLine(file.name, 80)}`}
        rows={16}
        spellCheck={false}
        value={now}
        onChange={(event) => {
          setNow(event.target.value);
          keepDraft(sandboxId, { file, read: text, now: event.target.value });
        }}
      />
      {visible(text.lines) !== text.lines && (
        <p className="note">It has characters that cannot be seen here; they are kept.</p>
      )}
      {problem !== null && <ProblemBox error={problem} again={save} look={look} title="It was not saved" />}
      <div className="row end">
        <button type="button" onClick={() => close(false)}>
          Cancel
        </button>
        <button type="submit" className="primary" disabled={isSaving || isUnknown}>
          Save
        </button>
      </div>
    </form>
  );
}

export type EditableText = { lines: string; ending: "\n" | "\r\n" };

/** The text of a file, if a field gives back its bytes: UTF-8 with one kind of line ends; else null. */
export function editableText(content: Uint8Array): EditableText | null {
  let text: string;
  try {
    text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(content);
  } catch {
    return null;
  }
  if (text.includes("\0")) return null;
  if (!text.includes("\r")) return { lines: text, ending: "\n" };
  const lines = text.replaceAll("\r\n", "\n");
  return lines.includes("\r") || lines.replaceAll("\n", "\r\n") !== text ? null : { lines, ending: "\r\n" };
}

/** Reads no more of an answer than so many bytes. */
async function beginning(answer: Response, most = PREVIEW_BYTES): Promise<Uint8Array<ArrayBuffer>> {
  const reader = answer.body?.getReader();
  const whole = new Uint8Array(most);
  let size = 0;
  while (reader && size < most) {
    const { done, value } = await reader.read();
    if (done) break;
    const part = value.subarray(0, most - size);
    whole.set(part, size);
    size += part.length;
  }
  await reader?.cancel();
  return whole.slice(0, size);
}

function shown(content: Uint8Array): string {
  if (!content.subarray(0, 4096).includes(0)) return visible(new TextDecoder().decode(content));
  const lines: string[] = [];
  for (let at = 0; at < Math.min(content.length, 4096); at += 16) {
    const row = [...content.subarray(at, at + 16)];
    const hex = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const text = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${hex.padEnd(47)}  ${text}`);
  }
  return lines.join("\n");
}

function encoded(content: Uint8Array): string {
  let text = "";
  for (let at = 0; at < content.length; at += 32_768)
    text += String.fromCharCode(...content.subarray(at, at + 32_768));
  return btoa(text);
}
