/** The editor of the composer: Python, with completions from the live context. Loaded when it is shown. */

import {
  autocompletion,
  type CompletionContext,
  type CompletionResult,
  completionKeymap,
  completionStatus,
} from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentLess, indentMore } from "@codemirror/commands";
import { python } from "@codemirror/lang-python";
import { bracketMatching, indentOnInput, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { EditorState, Prec } from "@codemirror/state";
import { drawSelection, EditorView, keymap, placeholder } from "@codemirror/view";
import { classHighlighter } from "@lezer/highlight";
import { useEffect, useRef } from "react";

export type Completions = { matches: string[]; cursor_start: number; cursor_end: number };
export type EditorActs = {
  run: (code: string, stays: boolean) => void;
  complete: (code: string, cursor: number) => Promise<Completions>;
  earlier: (back: number) => string | undefined;
  leave: () => void;
};
export type EditorHandle = { text: () => string; set: (text: string) => void; focus: () => void };
type Given = EditorActs & { ready: (handle: EditorHandle) => void; start: string };

export default function Editor({ ready, start, ...acts }: Given) {
  const place = useRef<HTMLDivElement>(null);
  const latest = useRef(acts);
  latest.current = acts;
  const begin = useRef({ ready, start });

  useEffect(() => {
    if (!place.current) return;
    const view = makeView(place.current, begin.current.start, () => latest.current);
    begin.current.ready({
      text: () => view.state.doc.toString(),
      set: (text) => {
        view.dispatch({
          changes: { from: 0, to: view.state.doc.length, insert: text },
          selection: { anchor: text.length },
        });
      },
      focus: () => view.focus(),
    });
    return () => view.destroy();
  }, []);

  return <div className="editor" ref={place} />;
}

function makeView(parent: HTMLElement, doc: string, acts: () => EditorActs): EditorView {
  let back = 0;
  const set = (view: EditorView, text: string) => {
    view.dispatch({
      changes: { from: 0, to: view.state.doc.length, insert: text },
      selection: { anchor: text.length },
    });
  };
  const run = (stays: boolean) => (view: EditorView) => {
    const code = view.state.doc.toString();
    if (code.trim()) {
      back = 0;
      acts().run(code, stays);
    }
    return true;
  };
  const step = (by: number) => (view: EditorView) => {
    const line = view.state.doc.lineAt(view.state.selection.main.head).number;
    const edge = by > 0 ? line === 1 : line === view.state.doc.lines;
    if (!edge || (back === 0 && by > 0 && view.state.doc.length > 0)) return false;
    const text = back + by === 0 ? "" : acts().earlier(back + by);
    if (text === undefined || back + by < 0) return false;
    back += by;
    set(view, text);
    return true;
  };
  // What is shown over the text is closed first; what is only awaited is not.
  const leave = (view: EditorView) => {
    if (completionStatus(view.state) === "active") return false;
    acts().leave();
    return true;
  };
  // Through an empty editor Tab leads on, as through any field; out of one with text, Escape leads.
  const tab = {
    key: "Tab",
    run: (view: EditorView) => view.state.doc.length > 0 && indentMore(view),
    shift: (view: EditorView) => view.state.doc.length > 0 && indentLess(view),
  };
  const complete = async (context: CompletionContext): Promise<CompletionResult | null> => {
    const before = context.matchBefore(/[\w.]+$/);
    if (!context.explicit && !before?.text.includes(".")) return null;
    try {
      const found = await acts().complete(context.state.doc.toString(), context.pos);
      return {
        from: found.cursor_start,
        options: found.matches.slice(0, 200).map((label) => ({ label })),
        validFor: /^[\w.]*$/,
      };
    } catch {
      return null;
    }
  };

  return new EditorView({
    parent,
    state: EditorState.create({
      doc,
      extensions: [
        Prec.highest(
          keymap.of([
            { key: "Shift-Enter", run: run(false) },
            { key: "Mod-Enter", run: run(true) },
            { key: "ArrowUp", run: step(1) },
            { key: "ArrowDown", run: step(-1) },
            { key: "Escape", run: leave },
          ]),
        ),
        keymap.of([...completionKeymap, ...historyKeymap, ...defaultKeymap, tab]),
        history(),
        drawSelection(),
        indentUnit.of("    "),
        indentOnInput(),
        bracketMatching(),
        python(),
        syntaxHighlighting(classHighlighter),
        autocompletion({ override: [complete], icons: false }),
        EditorView.lineWrapping,
        EditorView.contentAttributes.of({ "aria-label": "Code to run" }),
        placeholder("Python to run here. Shift+Enter runs it."),
      ],
    }),
  });
}
