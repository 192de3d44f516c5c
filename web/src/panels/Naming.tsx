/** A field for the name of a file or folder: of a new folder, or a new name of what is there. */

import { useEffect, useRef, useState } from "react";
import { ProblemBox } from "../parts/Problems";

type Given = {
  label: string;
  act: string;
  start?: string;
  /** Names that are taken in the folder. */
  taken: string[];
  run: (name: string) => Promise<unknown>;
  close: () => void;
};

export function Naming({ label, act, start = "", taken, run, close }: Given) {
  const field = useRef<HTMLInputElement>(null);
  const [name, setName] = useState(start);
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState<unknown>(null);

  useEffect(() => {
    field.current?.focus();
    field.current?.select();
  }, []);

  const save = async () => {
    if (name === start) return close();
    setBusy(true);
    try {
      const wrong = refusal(name, taken);
      if (wrong) throw new Error(wrong);
      await run(name);
      close();
    } catch (error) {
      setProblem(error);
      setBusy(false);
    }
  };

  return (
    <form
      className="naming"
      onSubmit={(event) => {
        event.preventDefault();
        save();
      }}
      onKeyDown={(event) => {
        if (event.key !== "Escape") return;
        event.stopPropagation();
        close();
      }}
    >
      <div className="row">
        <input
          ref={field}
          aria-label={label}
          placeholder={label}
          autoComplete="off"
          spellCheck={false}
          value={name}
          onChange={(event) => setName(event.target.value)}
        />
        <button type="submit" disabled={isBusy}>
          {act}
        </button>
        <button type="button" className="subtle" onClick={close}>
          Cancel
        </button>
      </div>
      {problem !== null && <ProblemBox error={problem} title="It has not got that name" />}
    </form>
  );
}

/** Why a name is no name here; empty: it is one. */
export function refusal(name: string, taken: string[]): string {
  if (!name || name === "." || name === "..") return "A name is needed.";
  if (/[/\0]/.test(name)) return "A name has no slash: files are renamed within their folder.";
  // The server would replace it.
  return taken.includes(name) ? "That name is taken in this folder." : "";
}
