import { EnvironmentError, type Lookup, ownSecrets } from './env'
import * as Lines from './lines'
import { isTable, report, type Source } from './reader'

type State = {
  source: Source
  lookup: Lookup
  /** First unset name of each merchant, by its index in the file. */
  unsetNames: Map<number, string>
}

/**
 * Replaces `${NAME}` in every string. An unset name is a fault. Below `[[merchants]]` it only takes
 * that merchant out of service: its index and the name are returned. Places with text from the
 * environment are recorded, so that no message shows it.
 */
export function substitute(
  raw: Readonly<Record<string, unknown>>,
  source: Source,
  lookup: Lookup,
): { raw: Record<string, unknown>; unsetNames: ReadonlyMap<number, string> } {
  const state: State = { source, lookup, unsetNames: new Map() }
  return { raw: walkTable(state, raw, []), unsetNames: state.unsetNames }
}

/** Tables without a name to replace are returned unchanged: nearly all of a file. */
function walkTable(
  state: State,
  table: Readonly<Record<string, unknown>>,
  path: Lines.Path,
): Record<string, unknown> {
  let changed: Record<string, unknown> | undefined
  for (const key of Object.keys(table)) {
    const value = table[key]
    const replaced = walk(state, value, path, key)
    if (replaced === value) continue
    changed ??= { ...table }
    changed[key] = replaced
  }
  return changed ?? table
}

function walk(state: State, value: unknown, path: Lines.Path, key: string | number): unknown {
  if (typeof value === 'string')
    return value.includes('${') ? replace(state, value, [...path, key]) : value
  if (Array.isArray(value)) {
    const own = [...path, key]
    const items = value.map((item: unknown, i) => walk(state, item, own, i))
    return items.every((item, i) => item === value[i]) ? value : items
  }
  return isTable(value) ? walkTable(state, value, [...path, key]) : value
}

function replace(state: State, text: string, path: Lines.Path): string {
  const parts: string[] = []
  state.source.fromEnv.set(Lines.keyOf(path), parts)
  return text.replace(/\$\{([^}]*)\}?/g, (whole, name: string) => {
    if (!whole.endsWith('}') || !/^[A-Za-z_][A-Za-z0-9_]*$/.test(name)) {
      report(state.source, path, 'after $ and { write a name of letters, digits and _, then }')
      return ''
    }
    if (ownSecrets.has(name)) {
      report(state.source, path, `${name} is a secret of the service itself: name another variable`)
      return ''
    }
    try {
      const value = state.lookup(name)
      if (value === undefined) unset(state, name, path)
      else parts.push(value)
      return value ?? ''
    } catch (error) {
      if (!(error instanceof EnvironmentError)) throw error
      report(state.source, path, error.message)
      return ''
    }
  })
}

function unset(state: State, name: string, path: Lines.Path): void {
  const [section, i] = path
  if (section === 'merchants' && typeof i === 'number') {
    if (!state.unsetNames.has(i)) state.unsetNames.set(i, name)
  } else {
    const remedy = `set ${name} or ${name}_FILE, or write the value here`
    report(state.source, path, `the environment has no ${name}: ${remedy}`)
  }
  state.source.unset.add(Lines.keyOf(path))
}
