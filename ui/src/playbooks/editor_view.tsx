/** The editor component; its code is loaded on demand. */
import { useEffect, useRef, useState } from "preact/hooks";
import type { Diagnostic } from "../common/api";
import { ErrorState, Loading } from "../common/components";
import type { Opened } from "./editor";

interface EditorViewProps {
  /** Initial text; a new object replaces the text. Otherwise the editor owns its text:
   * passing it back as a property would overwrite concurrent input. */
  given: { text: string };
  readOnly: boolean;
  label: string;
  found: Diagnostic[];
  docs: string;
  /** Position to scroll to: a new object each time. */
  target: { line: number; column: number } | null;
  onExplain: (code: string) => void;
  onChange: (text: string) => void;
  onSave: () => void;
  onRun: () => void;
}

export function EditorView(props: EditorViewProps) {
  const place = useRef<HTMLDivElement>(null);
  const opened = useRef<Opened | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const [loaded, setLoaded] = useState(false);
  const [failed, setFailed] = useState<unknown>(null);

  useEffect(() => {
    let left = false;
    import("./editor").then(
      ({ open }) => {
        if (left || !place.current) return;
        const { given, readOnly, label } = latest.current;
        opened.current = open(place.current, {
          text: given.text,
          readOnly,
          label,
          docs: () => latest.current.docs,
          onExplain: (code) => latest.current.onExplain(code),
          onChange: (changed) => latest.current.onChange(changed),
          onSave: () => latest.current.onSave(),
          onRun: () => latest.current.onRun(),
        });
        setLoaded(true);
      },
      (error) => setFailed(error),
    );
    return () => {
      left = true;
      opened.current?.close();
      opened.current = null;
    };
  }, []);
  useEffect(() => opened.current?.set(props.given.text), [props.given]);
  useEffect(() => opened.current?.mark(props.found), [props.found, loaded]);
  useEffect(() => {
    if (props.target) opened.current?.goTo(props.target.line, props.target.column);
  }, [props.target, loaded]);

  if (failed) return <ErrorState problem="The editor could not be loaded. Reload the page." />;
  return (
    <div class="editor" ref={place}>
      {!loaded && <Loading what="Loading editor" />}
    </div>
  );
}
