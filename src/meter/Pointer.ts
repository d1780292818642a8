/** A JSON pointer (RFC 6901), as its decoded names. */
export type Pointer = readonly string[]

const form = /^(?:\/(?:[^~/]|~[01])+)+$/

/** Undefined for what is no pointer to a member. An empty name is refused, too: no service has one. */
export function parse(text: string): Pointer | undefined {
  if (!form.test(text)) return undefined
  const names = text.slice(1).split('/')
  if (!text.includes('~')) return names
  return names.map((name) => name.replaceAll('~1', '/').replaceAll('~0', '~'))
}

/** For pointers in code. Throws Error for what `parse` refuses. */
export function all(...texts: readonly string[]): readonly Pointer[] {
  return texts.map((text) => {
    const pointer = parse(text)
    if (pointer === undefined) throw new Error(`${text} is no JSON pointer`)
    return pointer
  })
}

export function format(pointer: Pointer): string {
  return pointer.map((name) => `/${name.replaceAll('~', '~0').replaceAll('/', '~1')}`).join('')
}

/** What stands at a pointer; undefined when nothing does. Own members only. */
export function get(value: unknown, pointer: Pointer): unknown {
  let at = value
  for (const name of pointer) {
    if (typeof at !== 'object' || at === null || !Object.hasOwn(at, name)) return undefined
    at = (at as Readonly<Record<string, unknown>>)[name]
  }
  return at
}

/** What stands at the first pointer that leads to something other than null. */
export function first(value: unknown, pointers: readonly Pointer[]): unknown {
  for (const pointer of pointers) {
    const found = get(value, pointer)
    if (found !== undefined && found !== null) return found
  }
  return undefined
}
