import { type TObject, Type } from '@sinclair/typebox'
import type { Config } from '../config/Config'
import { resourcesQuery } from '../gateway/documents/documents'
import * as Messages from '../gateway/mcp/Messages'
import { type Document, seal, sendDocument } from '../http/document'
import { paymentAnswer } from '../paywall/usage/lookup'
import * as Facilitation from '../protocol/Facilitation'
import * as Schema from '../protocol/Schema'
import { grantBody } from '../sponsor/granting'
import { historyQuery } from '../stock/handlers'
import { quoteNames, termsQuery } from '../stock/Instrument'
import * as Orders from '../stock/Order'
import { actionFields, actionNames } from '../web/admin/actions'
import { searchQuery } from '../web/admin/payments'
import { rangeQuery } from '../web/admin/range'
import { signInFields, signOutFields } from '../web/admin/sign-in'

/** An endpoint of our own, with the schemas that check its requests. */
type Endpoint = {
  method: 'get' | 'post'
  path: string
  /** Base URL. */
  at: string
  summary: string
  inPath?: TObject
  query?: TObject
  body?: TObject
  /** Media type of the body; JSON by default. */
  bodyType?: string
  /** Media type of the answer; JSON by default. */
  answerType?: string
  answer?: TObject
}

const maxAgeSeconds = 300

const paymentPath = Type.Object({ id: Type.String({ pattern: '^pay_[0-9a-f]{32}$' }) })
const orderPath = Type.Object({ id: Type.String({ pattern: Orders.idPattern }) })

const actionPath = Type.Object({ action: Type.String({ pattern: `^(${actionNames.join('|')})$` }) })

const codePath = Type.Object({ code: Type.String({ pattern: '^[a-z-]+$' }) })

type Rest = Omit<Endpoint, 'method' | 'at' | 'path' | 'summary'>

const get = (at: string, path: string, summary: string, rest?: Rest): Endpoint => {
  return { method: 'get', at, path, summary, ...rest }
}
const post = (at: string, path: string, summary: string, rest?: Rest): Endpoint => {
  return { method: 'post', at, path, summary, ...rest }
}

/** What a form of the operator's pages sends. */
const form = { bodyType: 'application/x-www-form-urlencoded', answerType: 'text/html' }
const text = { answerType: 'text/plain' }

/** The paths of app/routes.ts that no merchant sells. */
function endpointsOf({ service, stock, networks }: Config): Endpoint[] {
  const { baseUrl, facilitatorUrl, stockBaseUrl } = service
  const asset = networks.find(({ id }) => id === stock?.network)?.asset
  const payment = { body: Facilitation.bodySchema }
  return [
    get(facilitatorUrl, '/supported', 'What the x402 facilitator settles.'),
    post(facilitatorUrl, '/verify', 'Verifies a payment.', payment),
    post(facilitatorUrl, '/settle', 'Settles a payment.', payment),
    get(facilitatorUrl, '/discovery/resources', 'Lists what is sold.', { query: resourcesQuery }),
    post(stockBaseUrl, '/api/gas/sponsor', 'Gives native coin for one approve of Permit2.', {
      body: grantBody,
    }),
    post(baseUrl, '/mcp', 'MCP over streamable HTTP: each route for sale is a tool.', {
      body: Messages.envelope,
    }),
    post(baseUrl, '/admin', 'Signs the operator in, by a cookie.', { body: signInFields, ...form }),
    get(baseUrl, '/admin/sales', 'What was earned in a period, for the operator.', {
      query: rangeQuery,
      answerType: 'text/html',
    }),
    get(baseUrl, '/admin/funnel', 'What became of the visitors of a period, for the operator.', {
      query: rangeQuery,
      answerType: 'text/html',
    }),
    get(baseUrl, '/admin/payments', 'Payments for the operator, the newest first.', {
      query: searchQuery,
      answerType: 'text/html',
    }),
    post(baseUrl, '/admin/actions/{action}', 'Does what the page of the action has confirmed.', {
      inPath: actionPath,
      body: actionFields,
      ...form,
    }),
    post(baseUrl, '/admin/sign-out', 'Ends the session of the operator, or all of them.', {
      body: signOutFields,
      ...form,
    }),
    get(
      baseUrl,
      '/api/payments/{id}',
      'What a payment has cost, and its refund, with the header Payment-Token of its answer.',
      { inPath: paymentPath, answer: paymentAnswer },
    ),
    get(baseUrl, '/healthz', 'Whether anything can be sold.'),
    get(baseUrl, '/readyz', 'Whether everything works.'),
    ...(service.metrics === 'off'
      ? []
      : [get(baseUrl, '/metrics', 'Metrics in the text format of Prometheus.', text)]),
    get(baseUrl, '/problems/{code}', 'What the code of a problem means, and what to do next.', {
      inPath: codePath,
      ...text,
    }),
    ...(asset === undefined ? [] : stockEndpoints(stockBaseUrl, asset.decimals)),
  ]
}

function stockEndpoints(at: string, assetDecimals: number): Endpoint[] {
  const query = termsQuery(assetDecimals)
  const quote = Type.Pick(query, quoteNames)
  return [
    get(at, '/api/stock/list', 'Tokens with live prices.'),
    get(at, '/api/stock/quote', 'What an amount buys now.', { query: quote }),
    post(at, '/api/stock/buy', 'Buys, for a payment (402).', { query }),
    get(at, '/api/stock/orders', 'Latest orders.', { query: historyQuery }),
    get(at, '/api/stock/order/{id}', 'One order.', { inPath: orderPath }),
  ]
}

/** OpenAPI 3.1 document of our own endpoints. What merchants sell is in `/openapi.json`. */
export function describeApi(config: Config): object {
  const { title, baseUrl, contact } = config.service
  const paths: Record<string, object> = {}
  for (const endpoint of endpointsOf(config)) {
    const { path, method, at, summary, answer, answerType = 'application/json' } = endpoint
    const content = answer === undefined ? {} : { schema: Schema.toJson(answer) }
    const operation = {
      summary,
      parameters: [
        ...parametersOf(endpoint.inPath, 'path'),
        ...parametersOf(endpoint.query, 'query'),
      ],
      ...bodyOf(endpoint),
      responses: {
        200: { description: 'The answer.', content: { [answerType]: content } },
        default: { description: 'A problem.', content: { 'application/problem+json': {} } },
      },
    }
    paths[path] = { servers: [{ url: at }], [method]: operation }
  }
  const info = { title, version: '1.0.0', ...(contact && { contact: { email: contact } }) }
  return { openapi: '3.1.0', info, servers: [{ url: baseUrl }], paths }
}

/** `GET /api/openapi.json`. The document is built at the first request. */
export function createApiDocument(config: Config): (request: Request) => Response {
  let made: Document | undefined
  return (request) => {
    made ??= seal(JSON.stringify(describeApi(config)))
    return sendDocument(request, made, 'application/json', maxAgeSeconds)
  }
}

function parametersOf(schema: TObject | undefined, place: 'path' | 'query'): object[] {
  if (schema === undefined) return []
  return Object.entries(schema.properties).map(([name, property]) => {
    const { description, ...rest } = Schema.toJson(property)
    const required = Schema.isRequired(schema, name)
    return { name, in: place, required, ...(description && { description }), schema: rest }
  })
}

function bodyOf({ body, bodyType = 'application/json' }: Endpoint): object {
  if (body === undefined) return {}
  return {
    requestBody: { required: true, content: { [bodyType]: { schema: Schema.toJson(body) } } },
  }
}
