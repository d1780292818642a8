import type { Static, TObject, TSchema } from '@sinclair/typebox'
import { type TypeCheck, TypeCompiler } from '@sinclair/typebox/compiler'
import * as Json from './Json'

/**
 * Request shapes as TypeBox schemas. They check requests, define the types, and are in the OpenAPI
 * document of our own endpoints. The keyword `fault` of a property is the message for a value that
 * does not fit. Documents omit it.
 */

/** A parameter that was refused. The reason never repeats the value. */
export type Wrong = { name: string; reason: string }

export type QueryOptions<S extends TObject> = {
  /**
   * Message for other parameters. Without it they are ignored, and of a repeated one the first
   * counts.
   */
  unknown?: string
  /**
   * Checks that a schema cannot express: returns the reason against a value that fits its schema.
   */
  checks?: { readonly [Name in keyof Static<S>]?: (text: string) => string | undefined }
}

type Texts<S extends TObject> = { readonly [Name in keyof Static<S>]?: string }

/**
 * Reads a query of texts. Returns the valid parameters and all faults: first unknown parameters,
 * then those of the schema, in its order.
 */
export function readQuery<S extends TObject>(
  schema: S,
  query: URLSearchParams,
  { unknown, checks = {} }: QueryOptions<S> = {},
): { values: Texts<S>; wrong: Wrong[] } {
  const wrong: Wrong[] = unknown === undefined ? [] : unknownNames(schema, query, unknown)
  const values: Record<string, string> = {}
  for (const [name, property] of Object.entries(schema.properties)) {
    const text = query.get(name)
    if (text === null) {
      if (isRequired(schema, name)) wrong.push({ name, reason: 'is required' })
      continue
    }
    const further = checks[name as keyof Static<S>]
    const reason = fits(property, text) ? further?.(text) : faultOf(property)
    if (reason === undefined) values[name] = text
    else wrong.push({ name, reason })
  }
  return { values: values as Texts<S>, wrong }
}

/** Throws a JsonError for a member that the schema does not have. */
export function assertNoOthers(schema: TObject, object: Json.JsonObject): void {
  const other = Object.keys(object).find((name) => !Object.hasOwn(schema.properties, name))
  if (other === undefined) return
  throw new Json.JsonError(`${JSON.stringify(other.slice(0, 40))} is not a member`)
}

/** The schema as JSON Schema 2020-12, which OpenAPI 3.1 takes. */
export function toJson(schema: TSchema): Json.JsonObject {
  // TypeBox stores its own data under symbols, which JSON omits.
  return JSON.parse(JSON.stringify(schema, (key, value) => (key === 'fault' ? undefined : value)))
}

/** Parameters and members are required unless they are optional in the schema. */
export function isRequired({ required = [] }: TObject, name: string): boolean {
  return required.includes(name)
}

function unknownNames(schema: TObject, query: URLSearchParams, unknown: string): Wrong[] {
  return [...new Set(query.keys())].flatMap((name) => {
    if (!Object.hasOwn(schema.properties, name)) return [{ name, reason: unknown }]
    return query.getAll(name).length > 1 ? [{ name, reason: 'is given more than once' }] : []
  })
}

/** A check is compiled at its first use. */
const compiled = new WeakMap<TSchema, TypeCheck<TSchema>>()

function fits(schema: TSchema, value: unknown): boolean {
  let check = compiled.get(schema)
  if (check === undefined) {
    check = TypeCompiler.Compile(schema)
    compiled.set(schema, check)
  }
  return check.Check(value)
}

function faultOf({ fault = 'is invalid' }: TSchema): string {
  return fault
}
