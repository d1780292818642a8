import type { Method, Param, Route } from '../../config/Config'

/** A request of a route, made from the values of its parameters. */
export type Example = {
  method: Method
  /** Absolute path and query, encoded. */
  target: string
  /** JSON text, for methods with a body. */
  body: string | undefined
}

/** A parameter with the value that it has in a request. */
export type Field = {
  param: Param
  /** Fixed text around the value of a segment: `{cik}.json`. */
  prefix: string
  suffix: string
  /** The only value of a segment that is a word of the path. */
  fixed: string | undefined
  /** '' where the request does not have the parameter. */
  value: string
  /** Also a member of the body, so a request with a body has it there. */
  isInBody: boolean
}

/** The values for a request of a route: its method, its parameters and its body. */
export type Values = {
  method: string | undefined
  body: string | undefined
  /** The value of a parameter by its name; without it, the example of each. */
  of: ((name: string) => string | undefined) | undefined
}

const examples: Values = { method: undefined, body: undefined, of: undefined }

/** A call of a route with the examples of its parameters. */
export function from(slug: string, route: Route): Example {
  return compose(slug, route, examples)
}

/** A call of a route with these values. script/compose.js does the same in the browser. */
export function compose(slug: string, route: Route, values: Values): Example {
  const method = route.methods.find((each) => each === values.method) ?? route.methods[0] ?? 'GET'
  const fields = fieldsOf(route, values.of)
  const tail = fields.filter(({ param }) => param.in === 'tail')
  const isPart = ({ param, fixed, value }: Field) =>
    fixed === undefined ? value !== '' : param.required
  const segments = tail
    .slice(0, tail.findLastIndex(isPart) + 1)
    .filter(({ fixed, value }) => fixed !== undefined || value !== '')
  const pairs = fields
    .filter(({ param, value }) => param.in === 'query' && value !== '')
    .filter(({ isInBody }) => !(isInBody && takesBody(method)))
    .map(({ param, value }) => `${encode(param.name)}=${encode(value)}`)
  const query = pairs.length === 0 ? '' : `?${pairs.join('&')}`
  const path = `${pathOf(slug, route)}${segments.map((segment) => `/${segmentOf(segment)}`).join('')}`
  const body = takesBody(method) ? (values.body ?? bodyOf(route)) : undefined
  return { method, target: path + query, body }
}

/** Path of a route without its tail. */
export function pathOf(slug: string, { path }: Route): string {
  return `/m/${slug}${path}`
}

export function takesBody(method: Method): boolean {
  return method === 'POST' || method === 'PUT' || method === 'PATCH'
}

/** The parameters of a route with their values: those of its examples, unless others are given. */
export function fieldsOf(route: Route, of?: Values['of']): Field[] {
  const tail = tailOf(route)
  const last = tail.findLastIndex(isWanted)
  const members = isObject(route.body?.properties) ? Object.keys(route.body.properties) : []
  const query = route.params.filter((param) => param.in === 'query')
  return [...tail, ...query].map((param, at) => {
    const [, prefix = '', inner, suffix = ''] = /^(.*)\{([^{}]+)\}(.*)$/.exec(param.name) ?? []
    const isShown = param.in === 'tail' ? at <= last : isWanted(param)
    const value = of === undefined ? isShown && exampleOf(param) : (of(param.name) ?? '')
    return {
      param,
      ...(inner === undefined ? { prefix: '', suffix: '' } : { prefix, suffix }),
      fixed: typeof param.schema.const === 'string' ? param.schema.const : undefined,
      value: value === false ? '' : String(value),
      isInBody: param.in === 'query' && members.includes(param.name),
    }
  })
}

/** A tail that is not described: one segment of any value where it is required, else a whole path. */
function tailOf(route: Route): Param[] {
  const described = route.params.filter((param) => param.in === 'tail')
  const required = route.tail === 'required'
  if (described.length > 0 || !(required || asksPath(route))) return described
  const description = required
    ? 'Further segments of the path, which go to the upstream.'
    : 'The path that you want, such as reports/today; / is the root.'
  const schema = { type: 'string' }
  return [{ name: 'tail', in: 'tail', required, description, schema, example: undefined }]
}

/** Whether a route sells any path, so that a person names one before it is sold. */
export function asksPath({ path, tail, params }: Route): boolean {
  return path === '' && tail === 'optional' && !params.some((param) => param.in === 'tail')
}

function isWanted(param: Param): boolean {
  return param.required || param.example !== undefined
}

function segmentOf({ param, prefix, suffix, fixed, value }: Field): string {
  if (fixed !== undefined) return encode(fixed)
  // The parameter named tail is all further segments.
  const text = param.name === 'tail' ? pathOfText(value) : encode(value)
  return prefix + text + suffix
}

function pathOfText(value: string): string {
  const names = value.split('/').filter((name) => name !== '')
  return names.map(encode).join('/')
}

function exampleOf({ schema, example }: Param): unknown {
  if (typeof schema.const === 'string') return schema.const
  if (example !== undefined) return example
  return sampleOf(schema)
}

function bodyOf({ body: schema = {} }: Route): string {
  const required = Array.isArray(schema.required) ? schema.required : []
  const members = membersOf(
    schema,
    (name, { example, examples }) =>
      required.includes(name) || example !== undefined || Array.isArray(examples),
  )
  return JSON.stringify(members ?? {})
}

/** An example value from a schema. */
function sampleOf(schema: Schema): unknown {
  const { examples: list, example, minimum } = schema
  if (example !== undefined) return example
  for (const values of [list, schema.enum])
    if (Array.isArray(values) && values.length > 0) return values[0]
  if (schema.default !== undefined) return schema.default
  switch (schema.type) {
    case 'integer':
    case 'number':
      return typeof minimum === 'number' ? Math.max(minimum, 1) : 1
    case 'boolean':
      return true
    case 'array':
      return []
    case 'object':
      return {}
    default:
      return 'example'
  }
}

/** An example of the answer of a route, as JSON text; undefined where its schema has none. */
export function answerOf({ answer }: Route): string | undefined {
  if (answer === undefined) return undefined
  const { example, examples: list } = answer
  const value = example ?? (Array.isArray(list) ? list[0] : membersOf(answer))
  return value === undefined ? undefined : JSON.stringify(value, undefined, 2)
}

type Schema = Readonly<Record<string, unknown>>

/** Example values of the members of an object; undefined where its schema has none. */
function membersOf(
  { properties }: Schema,
  isShown: (name: string, schema: Schema) => boolean = () => true,
): unknown {
  if (!isObject(properties)) return undefined
  const entries = Object.entries(properties).flatMap(([name, inner]) =>
    isObject(inner) && isShown(name, inner) ? [[name, sampleOf(inner)]] : [],
  )
  return Object.fromEntries(entries)
}

function isObject(value: unknown): value is Schema {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** Encodes a text except for characters that a path segment and a query may contain unencoded. */
function encode(text: string): string {
  return encodeURIComponent(text).replace(/%(?:2C|3A|40)/g, decodeURIComponent)
}
