/** Text with ANSI colours as elements; other control sequences are removed. */
import type { ComponentChildren } from "preact";

const SEQUENCE = /\x1b\[([0-9;]*)m|\x1b\[[0-9;?]*[ -/]*[@-ln-~]|\x1b[@-Z\\-_]|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]/g;
const COLOURS = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];

/** The text without control sequences. */
export const plain = (text: string) => (/[\x00-\x1f\x7f]/.test(text) ? text.replace(SEQUENCE, "") : text);

interface Style {
  colour: string;
  bold: boolean;
  dim: boolean;
  underline: boolean;
}

const NONE: Style = { colour: "", bold: false, dim: false, underline: false };

function applied(style: Style, codes: string): Style {
  let next = { ...style };
  const numbers = (codes || "0").split(";").map(Number);
  for (let at = 0; at < numbers.length; at++) {
    const code = numbers[at];
    if (code === 0) next = { ...NONE };
    else if (code === 1) next.bold = true;
    else if (code === 2) next.dim = true;
    else if (code === 4) next.underline = true;
    else if (code === 22) next.bold = next.dim = false;
    else if (code === 24) next.underline = false;
    else if (code >= 30 && code <= 37) next.colour = COLOURS[code - 30];
    else if (code >= 90 && code <= 97) next.colour = COLOURS[code - 90];
    else if (code === 39) next.colour = "";
    else if (code === 38 || code === 48) at += numbers[at + 1] === 2 ? 4 : 2; // 256 colours and RGB are not shown
  }
  return next;
}

const classOf = (style: Style) => [style.colour && `ansi-${style.colour}`, style.bold && "ansi-bold", style.dim && "ansi-dim", style.underline && "ansi-underline"].filter(Boolean).join(" ");

/** The text as elements; parts that contain `find` are marked. */
export function Ansi({ text, find = "" }: { text: string; find?: string }) {
  if (!/[\x00-\x1f\x7f]/.test(text)) return <>{marked(text, find)}</>;
  const parts: ComponentChildren[] = [];
  let style = NONE;
  let done = 0;
  const add = (piece: string) => {
    if (piece) parts.push(style === NONE || !classOf(style) ? marked(piece, find) : <span class={classOf(style)}>{marked(piece, find)}</span>);
  };
  for (const found of text.matchAll(SEQUENCE)) {
    add(text.slice(done, found.index));
    if (found[1] !== undefined) style = applied(style, found[1]);
    done = found.index! + found[0].length;
  }
  add(text.slice(done));
  return <>{parts}</>;
}

function marked(text: string, find: string): ComponentChildren {
  if (!find) return text;
  const parts: ComponentChildren[] = [];
  const lower = text.toLowerCase();
  let done = 0;
  for (let at = lower.indexOf(find); at >= 0; at = lower.indexOf(find, done)) {
    parts.push(text.slice(done, at), <mark>{text.slice(at, at + find.length)}</mark>);
    done = at + find.length;
  }
  parts.push(text.slice(done));
  return <>{parts}</>;
}
