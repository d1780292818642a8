/** A JSON pointer (RFC 6901), as its decoded names. */
export type Pointer = readonly string[]

const form = /^(?:\/(?:[^~/]|~[01])+)+$/

/**
 * Undefined for a text that is not a pointer to a member. An empty name is refused, too, because no
 * service uses one.
 */
export function parse(text: string): Pointer | undefined {
  if (!form.test(text)) return undefined
  const names = text.slice(1).split('/')
  if (!text.includes('~')) return names
  return names.map((name) => name.replaceAll('~1', '/').replaceAll('~0', '~'))
}

/** For pointers in code. Throws Error where `parse` returns undefined. */
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

/** The value at a pointer; undefined without one. Own members only. */
export function get(value: unknown, pointer: Pointer): unknown {
  let at = value
  for (const name of pointer) {
    if (typeof at !== 'object' || at === null || !Object.hasOwn(at, name)) return undefined
    at = (at as Readonly<Record<string, unknown>>)[name]
  }
  return at
}

/** The value at the first pointer whose value is not null. */
export function first(value: unknown, pointers: readonly Pointer[]): unknown {
  for (const pointer of pointers) {
    const found = get(value, pointer)
    if (found !== undefined && found !== null) return found
  }
  return undefined
}
