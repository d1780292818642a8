import type { Values } from '../select'

type Positional = { text: string; names: readonly string[] }

const made = new Map<string, Positional>()

/** A statement with parameters such as `$from`, as PostgreSQL takes it: `$1` and an array. */
export function positional(text: string, values: Values): [text: string, values: unknown[]] {
  const known = made.get(text) ?? toPositional(text)
  made.set(text, known)
  return [known.text, known.names.map((name) => encoded(values[name] ?? null))]
}

function toPositional(text: string): Positional {
  const names: string[] = []
  const replaced = text.replaceAll(/\$([A-Za-z]\w*)/g, (_, name: string) => {
    if (!names.includes(name)) names.push(name)
    return `$${names.indexOf(name) + 1}`
  })
  return { text: replaced, names }
}

function encoded(value: string | number | null): string | number | null {
  return typeof value === 'string' ? storable(value) : value
}

/** A text without what PostgreSQL refuses in texts: NUL, and halves of a surrogate pair. */
export function storable(text: string): string {
  return text.toWellFormed().replaceAll('\0', '\ufffd')
}
