/** The command palette (Ctrl+K) and the list of shortcuts (?). */
import { useEffect, useRef, useState } from "preact/hooks";
import { api, type Page } from "./api";
import { Dialog } from "./components";
import { go } from "./router";

interface Entry {
  words: string;
  hint: string;
  act: () => void;
}

const PAGES: [string, string][] = [
  ["/", "Home"],
  ["/executions", "Executions"],
  ["/executions?status=failed", "Failed executions"],
  ["/executions?status=running", "Running executions"],
  ["/inbox", "Inbox"],
  ["/playbooks", "Playbooks"],
  ["/playbooks?new=1", "New playbook"],
  ["/lineage", "Lineage"],
  ["/operations", "Operations: overview"],
  ...["workers", "limits", "schedules", "backfills", "triggers", "deliveries", "webhooks", "notifications", "schemas", "state", "credentials", "tokens"].map((each): [string, string] => [`/operations/${each}`, `Operations: ${each}`]),
];

const SHORTCUTS: [string, string][] = [
  ["Ctrl+K", "command palette: go to a page, a playbook or an execution"],
  ["?", "this list"],
  ["/", "search in a list"],
  ["j, k", "next and previous row of a list"],
  ["x", "select an execution"],
  ["Enter", "open the focused row"],
  ["g e, g i, g p, g o", "executions, inbox, playbooks, operations"],
  ["Ctrl+S", "save the playbook as a new version (editor)"],
  ["Ctrl+Enter", "run the playbook (editor)"],
];

const typing = (target: EventTarget | null) => target instanceof HTMLElement && (/INPUT|TEXTAREA|SELECT/.test(target.tagName) || target.isContentEditable);

export function Palette() {
  const [open, setOpen] = useState<"palette" | "help" | null>(null);
  const going = useRef(0);
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        setOpen("palette");
        return;
      }
      if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target) || document.querySelector("dialog[open]")) return;
      if (event.key === "?") setOpen("help");
      else if (event.key === "g") going.current = Date.now();
      else if (Date.now() - going.current < 1200) {
        const to = { e: "/executions", i: "/inbox", p: "/playbooks", o: "/operations" }[event.key];
        going.current = 0;
        if (to) go(to);
      }
    };
    document.addEventListener("keydown", onKey);
    return () => document.removeEventListener("keydown", onKey);
  }, []);
  if (open === "help") {
    return (
      <Dialog title="Shortcuts" onClose={() => setOpen(null)}>
        <dl class="shortcuts">
          {SHORTCUTS.map(([keys, words]) => (
            <>
              <dt>
                <kbd>{keys}</kbd>
              </dt>
              <dd>{words}</dd>
            </>
          ))}
        </dl>
      </Dialog>
    );
  }
  return open === "palette" ? <Commands close={() => setOpen(null)} /> : null;
}

function Commands({ close }: { close: () => void }) {
  const [text, setText] = useState("");
  const [found, setFound] = useState<Entry[]>([]);
  const [at, setAt] = useState(0);
  const wanted = text.trim();
  useEffect(() => {
    const leaving = new AbortController();
    const pages: Entry[] = PAGES.filter(([, words]) => words.toLowerCase().includes(wanted.toLowerCase())).map(([to, words]) => ({ words, hint: "page", act: () => go(to) }));
    const execution: Entry[] = /^\d{10,19}$/.test(wanted) ? [{ words: `Execution ${wanted}`, hint: "execution", act: () => go(`/executions/${wanted}`) }] : [];
    setFound([...execution, ...pages]);
    setAt(0);
    if (!wanted) return () => leaving.abort();
    const timer = setTimeout(() => {
      api.get<Page<{ path: string }>>("/api/catalog", { search: wanted, limit: 8 }, leaving.signal).then(
        (page) => {
          const playbooks = page.items.flatMap((each): Entry[] => [
            { words: each.path, hint: "playbook", act: () => go(`/playbooks/${each.path}`) },
            { words: `Executions of ${each.path}`, hint: "list", act: () => go(`/executions?path=${encodeURIComponent(each.path)}`) },
          ]);
          setFound([...execution, ...playbooks, ...pages]);
        },
        () => {},
      );
    }, 150);
    return () => {
      leaving.abort();
      clearTimeout(timer);
    };
  }, [wanted]);
  const choose = (entry: Entry | undefined) => {
    if (!entry) return;
    close();
    entry.act();
  };
  return (
    <Dialog title="Go to" onClose={close}>
      <input
        type="search"
        placeholder="Page, playbook or execution id"
        aria-label="Page, playbook or execution id"
        {...({ role: "combobox", "aria-expanded": "true" } as object)}
        aria-controls="palette-list"
        aria-activedescendant={found.length ? `palette-${at}` : undefined}
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={(event) => {
          const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
          if (by) {
            setAt((now) => (now + by + found.length) % Math.max(1, found.length));
            event.preventDefault();
          } else if (event.key === "Enter") {
            event.preventDefault();
            choose(found[at]);
          }
        }}
      />
      <ul id="palette-list" role="listbox" aria-label="Results" class="palette">
        {found.slice(0, 14).map((each, index) => (
          <li key={`${each.hint} ${each.words}`} id={`palette-${index}`} role="option" aria-selected={index === at} onClick={() => choose(each)}>
            {each.words} <span class="quiet">{each.hint}</span>
          </li>
        ))}
      </ul>
    </Dialog>
  );
}
