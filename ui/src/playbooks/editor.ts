/** The editor: CodeMirror with completion and diagnostics of the language. Loaded when a playbook is opened. */
import { acceptCompletion, autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap, insertBracket, type CompletionContext, type CompletionResult } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { yaml } from "@codemirror/lang-yaml";
import { bracketMatching, foldGutter, foldKeymap, HighlightStyle, indentOnInput, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { lintGutter, lintKeymap, setDiagnostics, type Diagnostic as Mark } from "@codemirror/lint";
import { highlightSelectionMatches, search, searchKeymap } from "@codemirror/search";
import { EditorState } from "@codemirror/state";
import { crosshairCursor, Decoration, drawSelection, EditorView, highlightActiveLine, highlightActiveLineGutter, hoverTooltip, keymap, lineNumbers, MatchDecorator, rectangularSelection, ViewPlugin, type DecorationSet, type Tooltip, type ViewUpdate } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { api, type Diagnostic } from "../common/api";
import { stays } from "./problem_list";

interface Options {
  text: string;
  readOnly: boolean;
  label: string;
  /** Base URL of the diagnostic pages; the code is appended. */
  docs: () => string;
  onExplain: (code: string) => void;
  onChange: (text: string) => void;
  onSave: () => void;
  onRun: () => void;
}

export interface Opened {
  set: (text: string) => void;
  mark: (found: Diagnostic[]) => void;
  goTo: (line: number, column: number) => void;
  close: () => void;
}

export function open(parent: HTMLElement, options: Options): Opened {
  const nonce = document.querySelector<HTMLMetaElement>('meta[name="style-nonce"]')?.content ?? "";
  const save = () => (options.onSave(), true);
  const run = () => (options.onRun(), true);
  const view = new EditorView({
    parent,
    state: EditorState.create({
      doc: options.text,
      extensions: [
        EditorView.cspNonce.of(nonce),
        keymap.of([
          { key: "Mod-s", run: save, preventDefault: true },
          { key: "Mod-Enter", run, preventDefault: true },
          { key: "Tab", run: acceptCompletion },
        ]),
        lineNumbers(),
        lintGutter(),
        foldGutter(),
        highlightActiveLineGutter(),
        highlightActiveLine(),
        history(),
        drawSelection(),
        rectangularSelection(),
        crosshairCursor(),
        indentOnInput(),
        indentUnit.of("  "),
        bracketMatching(),
        closeBrackets(),
        highlightSelectionMatches(),
        search({ top: true }),
        autocompletion({ override: [words], icons: false }),
        hoverTooltip(meaning, { hoverTime: 350 }),
        yaml(),
        templates,
        syntaxHighlighting(colours),
        look,
        EditorState.readOnly.of(options.readOnly),
        EditorView.contentAttributes.of({
          tabindex: "0",
          "aria-label": options.label,
          "aria-description": "Press Escape, then Tab to leave the editor. Press Control and Space for completion.",
        }),
        EditorView.domEventHandlers({ beforeinput: overSelection }),
        EditorView.updateListener.of((update) => {
          if (update.docChanged) options.onChange(update.state.doc.toString());
        }),
        keymap.of([...closeBracketsKeymap, ...defaultKeymap, ...searchKeymap, ...historyKeymap, ...foldKeymap, ...completionKeymap, ...lintKeymap, indentWithTab]),
      ],
    }),
  });

  return {
    set: (text) => {
      const shown = view.state.doc.toString();
      if (text === shown) return;
      // Only the difference is replaced, so that the cursor and the folds are kept.
      let from = 0;
      while (from < text.length && from < shown.length && text[from] === shown[from]) from++;
      let back = 0;
      while (back < text.length - from && back < shown.length - from && text[text.length - 1 - back] === shown[shown.length - 1 - back]) back++;
      view.dispatch({ changes: { from, to: shown.length - back, insert: text.slice(from, text.length - back) } });
    },
    mark: (found) => view.dispatch(setDiagnostics(view.state, found.map((each) => marked(view.state, each, options)))),
    goTo: (line, column) => {
      const at = position(view.state, line, column);
      view.dispatch({ selection: { anchor: at }, effects: EditorView.scrollIntoView(at, { y: "center" }) });
      view.focus();
    },
    close: () => view.destroy(),
  };
}

/** What is typed over a selection is put in by us: the browser would carry the style of what it replaces along,
 * inline, which the page's policy forbids. */
function overSelection(event: InputEvent, view: EditorView): boolean {
  const { state } = view;
  if (event.inputType !== "insertText" || !event.data || event.isComposing || state.selection.main.empty || state.readOnly) return false;
  event.preventDefault();
  view.dispatch(insertBracket(state, event.data) ?? state.update(state.replaceSelection(event.data), { userEvent: "input.type", scrollIntoView: true }));
  return true;
}

/** The offset of a line and a column, both from 1; positions after the text are its end. */
function position(state: EditorState, line: number, column: number): number {
  const found = state.doc.line(Math.min(Math.max(line, 1), state.doc.lines));
  return Math.min(found.from + Math.max(column, 1) - 1, found.to);
}

function marked(state: EditorState, found: Diagnostic, options: Options): Mark {
  const from = position(state, found.line, found.column);
  const end = position(state, found.end_line ?? found.line, found.end_column ?? found.column + 1);
  const line = state.doc.lineAt(from);
  // A diagnostic for a whole block is shown on its first line only.
  const to = Math.min(Math.max(end, from + 1), Math.max(line.to, from));
  return {
    from: to === from ? Math.max(line.from, from - 1) : from,
    to,
    severity: found.severity,
    message: found.message,
    renderMessage: () => {
      const box = element("div", "finding");
      box.append(prose(found.message));
      if (found.hint) {
        const hint = element("div", "hint");
        hint.append("help: ", prose(found.hint));
        box.append(hint);
      }
      box.append(codeLink(found.code, options));
      return box;
    },
  };
}

function codeLink(code: string, options: Options): HTMLElement {
  const link = element("a", "code", code) as HTMLAnchorElement;
  link.href = options.docs() + code;
  link.addEventListener("click", (event) => {
    if (!stays(event)) return;
    event.preventDefault();
    options.onExplain(code);
  });
  link.target = "_blank";
  link.rel = "noreferrer";
  return link;
}

function element(name: string, className: string, text = ""): HTMLElement {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}

/** Text in which `backticks` are rendered as code; it is not parsed as markup. */
function prose(text: string): HTMLElement {
  const made = document.createElement("span");
  text.split("`").forEach((part, index) => made.append(index % 2 ? element("code", "", part) : part));
  return made;
}

interface Offered {
  column: number;
  items: { word: string; doc: string; kind: "key" | "value" }[];
}

async function words(context: CompletionContext): Promise<CompletionResult | null> {
  const line = context.state.doc.lineAt(context.pos);
  const before = line.text.slice(0, context.pos - line.from);
  if (!context.explicit && !/[\w.]$/.test(before)) return null;
  const found = await ask<Offered>("/api/complete", context.state, context.pos);
  if (!found || context.aborted) return null;
  const colon = /^[\w-]*\s*:/.test(line.text.slice(before.length)) ? "" : ": ";
  return {
    from: line.from + found.column - 1,
    options: found.items.map((each, index) => ({
      label: each.word,
      info: each.doc ? () => prose(each.doc) : undefined,
      type: each.kind,
      boost: -index,
      apply: each.kind === "key" ? each.word + colon : each.word,
    })),
    validFor: /^[\w-]*$/,
  };
}

interface Meaning {
  word: string;
  column: number;
  end_column: number;
  doc: string;
  takes: string;
  required: boolean;
  default: unknown;
}

async function meaning(view: EditorView, at: number): Promise<Tooltip | null> {
  const requested = view.state;
  const found = (await ask<{ hover: Meaning | null }>("/api/hover", requested, at))?.hover;
  if (!found || view.state.doc !== requested.doc) return null; // the text has changed since the request
  const line = requested.doc.lineAt(at);
  return {
    pos: line.from + found.column - 1,
    end: line.from + found.end_column - 1,
    above: true,
    create: () => {
      const dom = element("div", "meaning");
      const first = element("div", "first");
      first.append(element("strong", "mono", found.word));
      if (found.required) first.append(element("span", "badge", "required"));
      dom.append(first);
      if (found.doc) dom.append(prose(found.doc));
      const details = [found.takes && `takes ${found.takes}`, found.default !== null && `default ${JSON.stringify(found.default)}`].filter(Boolean).join("; ");
      if (details) {
        const last = element("div", "quiet");
        last.append(prose(details));
        dom.append(last);
      }
      return { dom };
    },
  };
}

/** Request information about a position; errors are ignored, as they would disturb typing. */
async function ask<T>(path: string, state: EditorState, at: number): Promise<T | null> {
  const line = state.doc.lineAt(at);
  try {
    return await api.post<T>(path, { content: state.doc.toString(), line: line.number, column: at - line.from + 1 });
  } catch {
    return null;
  }
}

const inTemplate = new MatchDecorator({ regexp: /\{\{.*?\}\}|\{%.*?%\}/g, decoration: Decoration.mark({ class: "cm-template" }) });
const templates = ViewPlugin.fromClass(
  class {
    shown: DecorationSet;
    constructor(view: EditorView) {
      this.shown = inTemplate.createDeco(view);
    }
    update(update: ViewUpdate) {
      this.shown = inTemplate.updateDeco(update, this.shown);
    }
  },
  { decorations: (plugin) => plugin.shown },
);

const colours = HighlightStyle.define([
  { tag: tags.definition(tags.propertyName), color: "var(--accent)" },
  { tag: tags.string, color: "var(--ok)" },
  { tag: tags.comment, color: "var(--quiet)", fontStyle: "italic" },
  { tag: [tags.labelName, tags.typeName, tags.meta], color: "var(--wait)" },
  { tag: [tags.separator, tags.punctuation, tags.squareBracket, tags.brace], color: "var(--quiet)" },
]);

const look = EditorView.theme({
  "&": { height: "100%", fontSize: "13px", color: "var(--text)", backgroundColor: "var(--surface)" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.55" },
  ".cm-content": { caretColor: "var(--accent)", paddingBottom: "40vh" },
  ".cm-cursor": { borderLeftColor: "var(--accent)", borderLeftWidth: "2px" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "color-mix(in srgb, var(--accent) 22%, transparent)" },
  ".cm-gutters": { backgroundColor: "var(--surface)", color: "var(--quiet)", border: "0" },
  ".cm-lineNumbers .cm-gutterElement": { minWidth: "34px", fontVariantNumeric: "tabular-nums" },
  ".cm-activeLine": { backgroundColor: "color-mix(in srgb, var(--accent) 5%, transparent)" },
  ".cm-activeLineGutter": { backgroundColor: "transparent", color: "var(--text)" },
  ".cm-template": { color: "var(--run)", backgroundColor: "color-mix(in srgb, var(--run) 9%, transparent)", borderRadius: "3px" },
  ".cm-template span": { color: "inherit" },
  ".cm-matchingBracket": { backgroundColor: "var(--accent-soft)", outline: "1px solid var(--line-strong)" },
  ".cm-selectionMatch": { backgroundColor: "var(--accent-soft)" },
  ".cm-foldPlaceholder": { backgroundColor: "var(--sunken)", border: "1px solid var(--line)", color: "var(--quiet)" },
  ".cm-panels": { backgroundColor: "var(--sunken)", color: "var(--text)", borderColor: "var(--line)" },
  ".cm-panels input, .cm-panels button": { color: "var(--text)", background: "var(--surface)", border: "1px solid var(--line-strong)", borderRadius: "4px" },
  ".cm-tooltip": { backgroundColor: "var(--raised)", color: "var(--text)", border: "1px solid var(--line-strong)", borderRadius: "8px", boxShadow: "var(--shadow)", overflow: "hidden" },
  ".cm-tooltip-autocomplete > ul": { fontFamily: "var(--mono)", maxHeight: "16em" },
  ".cm-tooltip-autocomplete > ul > li": { padding: "3px 10px" },
  ".cm-tooltip-autocomplete > ul > li[aria-selected]": { backgroundColor: "var(--accent)", color: "var(--on-accent)" },
  ".cm-tooltip.cm-completionInfo": { padding: "8px 12px", maxWidth: "340px", fontFamily: "var(--font)", overflow: "visible" },
  ".cm-diagnostic": { padding: "8px 12px", maxWidth: "460px", fontFamily: "var(--font)" },
  ".cm-diagnostic-error": { borderLeft: "3px solid var(--bad)" },
  ".cm-diagnostic-warning": { borderLeft: "3px solid var(--wait)" },
  ".cm-lintRange-error": { backgroundImage: "none", borderBottom: "2px solid var(--bad)" },
  ".cm-lintRange-warning": { backgroundImage: "none", borderBottom: "2px dotted var(--wait)" },
  ".cm-lint-marker": { width: "0.7em", height: "0.7em", margin: "0.42em auto", borderRadius: "50%", content: '""' },
  ".cm-lint-marker-error": { backgroundColor: "var(--bad)", content: '""' },
  ".cm-lint-marker-warning": { backgroundColor: "var(--wait)", content: '""', borderRadius: "2px" },
});
