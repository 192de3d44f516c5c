/** One terminal, drawn by xterm.js: attached to again where it was when the connection breaks or the page is loaded anew.
 *
 * What a guest writes here is hostile: titles and the clipboard are not listened to, a link is opened after a question
 * that shows all of it, and lines are pasted after a question. Nothing leaves the terminal before the viewer types: a
 * query in what is shown again gets no answer that a shell would take for something typed.
 */

import { FitAddon } from "@xterm/addon-fit";
import { type ITheme, Terminal } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";
import { useEffect, useRef, useState } from "react";
import { segment } from "../api/client";
import { visible } from "../parts/format";
import { Question } from "../parts/Question";

const SCROLLBACK_LINES = 5000;
const FONT_SIZE = 13;
const LONGEST_WAIT_SECONDS = 30;
const LOST = 1006;

type Given = { sandboxId: string; pid: number; isReadOnly?: boolean; ended: () => void };
type Asked = { what: "link" | "paste"; text: string };
type Said = { type: string; exit_code?: number; bytes?: number; problem?: { detail?: string } };

export default function TerminalView({ sandboxId, pid, ended }: Given) {
  const place = useRef<HTMLDivElement>(null);
  const terminal = useRef<Terminal | null>(null);
  const [state, setState] = useState("connecting");
  const [asked, setAsked] = useState<Asked | null>(null);
  const over = useRef(ended);
  over.current = ended;

  useEffect(() => {
    const pane = place.current;
    if (!pane) return;
    const fit = new FitAddon();
    const made = new Terminal({
      allowProposedApi: false,
      fontFamily: getComputedStyle(pane).fontFamily,
      fontSize: FONT_SIZE,
      scrollback: SCROLLBACK_LINES,
      theme: themeOf(pane),
      linkHandler: { activate: (_, text) => setAsked({ what: "link", text }), allowNonHttpProtocols: false },
    });
    terminal.current = made;
    made.loadAddon(fit);
    made.open(pane);
    const connection = new Connection(sandboxId, pid, made, setState, () => over.current());
    // Tab is for the shell: without a key of its own a keyboard could not leave (WCAG 2.1.2).
    const left = (event: KeyboardEvent) => {
      if (event.key !== "F6" || !event.shiftKey) return;
      event.preventDefault();
      event.stopImmediatePropagation();
      pane.closest(".terminals")?.querySelector<HTMLElement>("button")?.focus();
    };
    const typed = () => connection.letTyping();
    const pasted = (event: ClipboardEvent) => {
      const text = event.clipboardData?.getData("text/plain") ?? "";
      typed();
      if (!/[\r\n]/.test(text)) return;
      event.preventDefault();
      event.stopPropagation();
      setAsked({ what: "paste", text });
    };
    pane.addEventListener("keydown", left, true);
    pane.addEventListener("keydown", typed, true);
    pane.addEventListener("beforeinput", typed, true);
    pane.addEventListener("paste", pasted, true);
    const themed = () => {
      made.options.theme = themeOf(pane);
    };
    const system = matchMedia("(prefers-color-scheme: dark)");
    const chosen = new MutationObserver(themed);
    system.addEventListener("change", themed);
    chosen.observe(document.documentElement, { attributes: true });
    const resized = new ResizeObserver(() => fit.fit());
    resized.observe(pane);
    fit.fit();
    connection.open();
    made.focus();

    return () => {
      resized.disconnect();
      chosen.disconnect();
      system.removeEventListener("change", themed);
      pane.removeEventListener("keydown", left, true);
      pane.removeEventListener("keydown", typed, true);
      pane.removeEventListener("beforeinput", typed, true);
      pane.removeEventListener("paste", pasted, true);
      connection.close();
      made.dispose();
      terminal.current = null;
    };
  }, [sandboxId, pid]);

  return (
    <>
      <section className="terminal-pane" ref={place} aria-label={`Terminal ${pid}`} />
      <p className="quiet small row">
        <span role="status">{state}</span>
        <span>Shift F6 leaves the terminal</span>
      </p>
      {asked && (
        <Question
          title={asked.what === "link" ? "Open this address in a new tab?" : "Paste several lines?"}
          act={asked.what === "link" ? "Open" : "Paste"}
          close={() => setAsked(null)}
          closed={() => terminal.current?.focus()}
          run={() => {
            if (asked.what === "link") window.open(asked.text, "_blank", "noopener,noreferrer");
            else terminal.current?.paste(asked.text);
          }}
        >
          <p>
            {asked.what === "link"
              ? "A program in the sandbox has made this link. It leads to:"
              : "A shell may run each line at once:"}
          </p>
          <pre className="asked">{visible(asked.text.slice(0, 4000))}</pre>
        </Question>
      )}
    </>
  );
}

/** The connection of a terminal: what comes is written, what is typed is sent. */
class Connection {
  private socket: WebSocket | null = null;
  private position = 0;
  private failures = 0;
  private isOver = false;
  private isTyping = false;
  private retry: ReturnType<typeof setTimeout> | null = null;

  constructor(
    private readonly sandboxId: string,
    private readonly pid: number,
    private readonly terminal: Terminal,
    private readonly tell: (state: string) => void,
    private readonly ended: () => void,
  ) {
    terminal.onData((text) => this.send(new TextEncoder().encode(text)));
    terminal.onBinary((text) => this.send(Uint8Array.from(text, (each) => each.charCodeAt(0))));
    terminal.onResize(() => this.resize());
  }

  open(): void {
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const path = `/v1/sandboxes/${segment(this.sandboxId)}/commands/${this.pid}/terminal`;
    const socket = new WebSocket(
      `${scheme}://${location.host}${path}?after=${this.position}`,
      "fumehood.pty",
    );
    socket.binaryType = "arraybuffer";
    this.socket = socket;
    socket.onmessage = ({ data }) => this.take(data);
    socket.onclose = ({ code }) => this.closed(socket, code);
  }

  close(): void {
    this.isOver = true;
    if (this.retry) clearTimeout(this.retry);
    this.socket?.close();
  }

  letTyping(): void {
    this.isTyping = true;
  }

  private take(data: ArrayBuffer | string): void {
    if (typeof data !== "string") {
      this.position += data.byteLength;
      this.terminal.write(new Uint8Array(data));
      return;
    }
    const said = JSON.parse(data) as Said;
    if (said.type === "started") {
      this.failures = 0;
      this.tell("connected");
      this.resize();
    } else if (said.type === "skipped") {
      this.position += said.bytes ?? 0;
    } else if (said.type === "exited") {
      this.isOver = true;
      this.tell(`ended with code ${said.exit_code}`);
      this.ended();
    } else if (said.type === "problem") {
      this.tell(said.problem?.detail ?? "the server refused it");
    }
  }

  private closed(socket: WebSocket, code: number): void {
    if (this.socket !== socket || this.isOver) return;
    this.socket = null;
    if (code !== LOST && code !== 1012 && code !== 1001) {
      this.tell("closed by the server");
      return;
    }
    const wait = Math.min(LONGEST_WAIT_SECONDS, 2 ** this.failures);
    this.failures += 1;
    this.tell(`interrupted; it is tried again in ${wait} s`);
    this.retry = setTimeout(() => this.open(), wait * 1000);
  }

  private send(data: Uint8Array<ArrayBuffer>): void {
    if (this.isTyping && this.socket?.readyState === WebSocket.OPEN) this.socket.send(data);
  }

  private resize(): void {
    const { cols, rows } = this.terminal;
    if (this.socket?.readyState === WebSocket.OPEN)
      this.socket.send(JSON.stringify({ type: "resize", cols, rows }));
  }
}

function themeOf(pane: HTMLElement): ITheme {
  const { backgroundColor, color } = getComputedStyle(pane);
  return { background: backgroundColor, foreground: color, cursor: color };
}
