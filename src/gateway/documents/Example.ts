type Schema = Readonly<Record<string, unknown>>

/** Deepest nesting that an example shows. */
const depthMax = 5

/**
 * A value that a JSON Schema describes: its own example if it has one, else the simplest value of
 * its type. `known` are values for members by name, which take precedence over the schema.
 */
export function of(
  schema: Schema,
  known: Readonly<Record<string, unknown>> = {},
  depth = 0,
): unknown {
  const { examples, example, enum: values } = schema
  if (example !== undefined) return example
  if (Array.isArray(examples) && examples.length > 0) return examples[0]
  if (schema.const !== undefined) return schema.const
  if (schema.default !== undefined) return schema.default
  if (Array.isArray(values) && values.length > 0) return values[0]
  const [type] = [schema.type].flat()
  switch (type) {
    case 'number':
    case 'integer':
      return typeof schema.minimum === 'number' ? schema.minimum : 1
    case 'boolean':
      return true
    case 'array':
      return isSchema(schema.items) && depth < depthMax ? [of(schema.items, {}, depth + 1)] : []
    case 'object':
      return depth < depthMax ? members(schema, known, depth + 1) : {}
    default:
      return 'string'
  }
}

/** Required members, and the other members whose value is known or in the schema. */
function members(schema: Schema, known: Readonly<Record<string, unknown>>, depth: number) {
  const properties = isSchema(schema.properties) ? schema.properties : {}
  const required = Array.isArray(schema.required) ? schema.required : []
  const result: Record<string, unknown> = {}
  for (const [name, member] of Object.entries(properties)) {
    if (!isSchema(member)) continue
    const isShown = 'example' in member || 'examples' in member
    if (Object.hasOwn(known, name) && known[name] !== undefined) result[name] = known[name]
    else if (isShown || required.includes(name) || hasRequired(member))
      result[name] = of(member, {}, depth)
  }
  return result
}

/** Whether a schema has required members, so that an example of it is useful. */
function hasRequired(schema: Schema): boolean {
  const inner = isSchema(schema.items) ? schema.items : schema
  return Array.isArray(inner.required) && inner.required.length > 0
}

function isSchema(value: unknown): value is Schema {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
