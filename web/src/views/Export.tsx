/** What ran, as a file: a notebook, a program, or a page. */

import { DropdownMenu } from "radix-ui";
import { ask, segment } from "../api/client";
import { usePlacePath } from "../api/place";
import { useMayAct } from "../parts/rights";

const FORMS: [string, string][] = [
  ["ipynb", "Notebook (.ipynb)"],
  ["py", "Program (.py)"],
  ["html", "Page (.html)"],
];

const STATE = "fumehood";
const SAVED: [string, string] = [STATE, "Saved state, to load again"];

type Given = { sandboxId: string; contextId: string; failed: (problem: unknown) => void };

export function Export({ sandboxId, contextId, failed }: Given) {
  const place = usePlacePath(sandboxId);
  const mayAct = useMayAct();
  const isLiving = mayAct && !place.includes("/records/");
  const save = async (form: string) => {
    try {
      const answer =
        form === STATE
          ? await ask(`${place}/save`, { method: "POST", accept: "*/*" })
          : await ask(`${place}/contexts/${segment(contextId)}/record?form=${form}`, { accept: "*/*" });
      // Never shown here: the file is the guest's, and is opened elsewhere.
      const url = URL.createObjectURL(
        new Blob([await answer.arrayBuffer()], { type: "application/octet-stream" }),
      );
      const link = document.createElement("a");
      link.href = url;
      link.download = `${sandboxId.slice(0, 12)}.${form}`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(url), 10_000);
      failed(null);
    } catch (problem) {
      failed(problem);
    }
  };

  return (
    <DropdownMenu.Root>
      <DropdownMenu.Trigger asChild>
        <button type="button">Export</button>
      </DropdownMenu.Trigger>
      <DropdownMenu.Portal>
        <DropdownMenu.Content className="menu" align="end" sideOffset={6}>
          {[...FORMS, ...(isLiving ? [SAVED] : [])].map(([form, label]) => (
            <DropdownMenu.Item key={form} onSelect={() => save(form)}>
              {label}
            </DropdownMenu.Item>
          ))}
        </DropdownMenu.Content>
      </DropdownMenu.Portal>
    </DropdownMenu.Root>
  );
}
