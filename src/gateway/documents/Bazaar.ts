import type { Merchant, Method, Param, Route } from '../../config/Config'
import type * as X402 from '../../protocol/X402'
import * as Catalogue from './Catalogue'

/** The x402 extension from which facilitators and indexers build catalogues of paid resources. */

type Input = Record<string, unknown>

// Readers of the extension refuse a template longer than the one in its specification.
const templatePattern = /^\/[a-zA-Z0-9_/:.\-~%]+$/

/**
 * `bazaar` of a route under one of its methods. It is the same for every request, so a 402 reuses
 * it. The brief form has the least that indexers list. The schema in `/openapi.json` also has the
 * parameters.
 */
export function extension(merchant: Merchant, route: Route, method: Method): X402.Declaration {
  const template = routeTemplate(merchant, route)
  const rest = template === undefined ? {} : { routeTemplate: template }
  return { name: 'bazaar', ...describe(route, method), ...rest, brief: brief(method) }
}

function brief(method: Method): X402.Extension {
  const properties = Catalogue.takesBody(method) ? { body: {} } : { queryParams: {} }
  return {
    info: { input: { type: 'http', method } },
    schema: { properties: { input: { properties }, output: { properties: { example: {} } } } },
  }
}

function describe(route: Route, method: Method): { info: object; schema: object } {
  const hasBody = Catalogue.takesBody(method)
  const input: Input = { type: 'http', method }
  const schema: Input = { type: { const: 'http' }, method: { const: method } }
  const required = ['type', 'method']
  const query = exampled(route, 'query')
  const path = exampled(route, 'tail')
  if (query.length > 0) input.queryParams = valuesOf(query)
  if (query.length > 0 || !hasBody) schema.queryParams = schemaOf(query)
  if (path.length > 0) input.pathParams = valuesOf(path)
  if (hasBody) {
    input.bodyType = 'json'
    input.body = Catalogue.exampleBody(route)
    schema.bodyType = { const: 'json' }
    schema.body = outline(Catalogue.bodySchema(route))
    required.push('bodyType', 'body')
  }
  return {
    info: { input, output: { type: 'json' } },
    schema: {
      type: 'object',
      properties: {
        input: { type: 'object', properties: schema, required },
        output: { type: 'object', properties: { example: kindOf(route) } },
      },
      required: ['input'],
    },
  }
}

/** The JSON type of an answer that is not an object. */
function kindOf({ answer }: Route): object {
  return answer?.type === undefined ? {} : { type: answer.type }
}

type Exampled = { name: string; required: boolean; value: unknown }

/** Parameters whose value can be shown: the required ones, and those with an example. */
function exampled(route: Route, place: Param['in']): Exampled[] {
  return route.params
    .filter((param) => param.in === place && param.schema.const === undefined)
    .filter((param) => param.required || param.example !== undefined)
    .map((param) => ({
      name: /\{([^{}]+)\}/.exec(param.name)?.[1] ?? param.name,
      required: param.required,
      value: Catalogue.exampleOf(param),
    }))
}

function valuesOf(params: readonly Exampled[]): object {
  return Object.fromEntries(params.map(({ name, value }) => [name, value]))
}

function schemaOf(params: readonly Exampled[]): object {
  if (params.length === 0) return { type: 'object' }
  const required = params.filter((param) => param.required).map(({ name }) => name)
  return {
    type: 'object',
    properties: Object.fromEntries(params.map(({ name, value }) => [name, { type: typeof value }])),
    ...(required.length === 0 ? {} : { required }),
  }
}

/** The first level of a body's schema, because a whole schema fills the header. */
function outline(schema: Readonly<Record<string, unknown>>): object {
  const { type, required, properties } = schema
  if (typeof properties !== 'object' || properties === null) return { type: type ?? 'object' }
  const members = Object.entries(properties).map(([name, member]) => [
    name,
    typeof member?.type === 'string' ? { type: member.type } : {},
  ])
  return {
    type: type ?? 'object',
    properties: Object.fromEntries(members),
    ...(required === undefined ? {} : { required }),
  }
}

/**
 * One catalogue key for all URLs of a route. Undefined when a route has only one URL, or when its
 * names are not allowed in a key.
 */
function routeTemplate(merchant: Merchant, route: Route): string | undefined {
  if (route.tail === 'none') return undefined
  const tail = route.tail === 'required' ? (Catalogue.formsOf(route)[0]?.path ?? '') : ''
  const template = `/m/${merchant.slug}${route.path}${tail.replace(/\{([^{}]+)\}/g, ':$1')}`
  return templatePattern.test(template) ? template : undefined
}
