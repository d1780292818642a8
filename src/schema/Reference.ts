/** References of a schema to its own parts. */

/** Why a schema was refused. The message completes "schema ...". */
export class SchemaError extends Error {
  override readonly name = 'SchemaError'
}

/** The schema at a reference such as `#/$defs/name` or `#anchor`. */
export function resolve(root: unknown, to: unknown): unknown {
  const missing = () => new SchemaError(`refers to ${String(to)}, which is not in it`)
  if (typeof to !== 'string' || !to.startsWith('#')) throw missing()
  if (to !== '#' && !to.startsWith('#/')) {
    const anchored = anchor(root, to)
    if (anchored === undefined) throw missing()
    return anchored
  }
  let found: unknown = root
  for (const part of to.slice(1).split('/').slice(1)) {
    const name = decode(part).replaceAll('~1', '/').replaceAll('~0', '~')
    if (typeof found !== 'object' || found === null || !Object.hasOwn(found, name)) throw missing()
    found = (found as Record<string, unknown>)[name]
  }
  return found
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part)
  } catch {
    return part
  }
}

function anchor(schema: unknown, to: string): unknown {
  if (typeof schema !== 'object' || schema === null) return undefined
  const { $anchor, $dynamicAnchor, $id } = schema as Record<string, unknown>
  if (`#${$anchor}` === to || `#${$dynamicAnchor}` === to || $id === to) return schema
  for (const part of Object.values(schema)) {
    const found = anchor(part, to)
    if (found !== undefined) return found
  }
  return undefined
}
