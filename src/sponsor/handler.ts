import { Type } from '@sinclair/typebox'
import { type Budget, readBody } from '../http/body'
import { clientOf } from '../http/client'
import { assertUnpacked } from '../http/methods'
import { corsHeaders } from '../http/problem'
import * as RateLimit from '../http/rate-limit'
import * as Json from '../protocol/Json'
import * as Problem from '../protocol/Problem'
import * as Schema from '../protocol/Schema'
import { networkOf } from './clients'
import type { Granting } from './granting'
import type { Refused } from './refusals'

export type SponsorHandlerOptions = {
  granting: Granting
  budget: Budget
  rateLimit: RateLimit.RateLimit
  trustProxy: number
  now: () => number
  /** Address of the other end of a request's connection. */
  addressOf(request: Request): string | undefined
}

const bodyMaxBytes = 4096
/** Requests per minute of one client, and of all clients of its network together. */
const perClient = 10
const perNetwork = 40

/** `POST /api/gas/sponsor`: native coin for the one approve that a holder of the asset needs. */
export async function sponsorApprove(
  options: SponsorHandlerOptions,
  request: Request,
): Promise<Response> {
  const { granting, rateLimit, now } = options
  const client = clientOf(request, options.addressOf(request), options.trustProxy)
  // Check the client first, so that its refused requests do not use up its network's limit.
  RateLimit.assertWithin(rateLimit.take(`sponsor ${client}`, perClient, now()))
  RateLimit.assertWithin(rateLimit.take(`sponsor ${networkOf(client)}`, perNetwork, now()))
  const { address, network, signature } = await read(request, options.budget, client)
  const result = await granting.grant({ address, network, signature, client })
  if (result.kind === 'refused') throw problemOf(result)
  return Response.json(result.body, { headers: { ...corsHeaders, 'Cache-Control': 'no-store' } })
}

async function read(request: Request, budget: Budget, client: string): Promise<Json.JsonObject> {
  const type = request.headers.get('content-type') ?? ''
  if (!/^application\/json\s*(;|$)/i.test(type)) {
    throw Problem.of('bad-request', 'The content type must be application/json.')
  }
  assertUnpacked(request.headers)
  const body = await readBody(request, bodyMaxBytes, budget, { client })
  try {
    const json = Json.parse(new TextDecoder('utf-8', { fatal: true }).decode(body.bytes))
    Schema.assertNoOthers(grantBody, json)
    return json
  } catch (error) {
    const reason = error instanceof Json.JsonError ? error.message : 'not UTF-8'
    throw Problem.of('bad-request', `The body must be {address, network?, signature?}: ${reason}.`)
  } finally {
    body.release()
  }
}

/** Body of a request. granting.ts checks the members together with the state of the address. */
export const grantBody = Type.Object(
  {
    address: Type.String({
      description: 'Holder of the asset; mixed case needs its checksum.',
      pattern: '^0x[0-9a-fA-F]{40}$',
    }),
    network: Type.Optional(
      Type.String({ description: 'CAIP-2 id; the first network that is sponsored by default.' }),
    ),
    signature: Type.Optional(
      Type.String({ description: 'EIP-191 signature of the address, when it is asked for.' }),
    ),
  },
  { additionalProperties: false },
)

function problemOf({ code, detail, members, retryAfterSeconds }: Refused): Problem.ProblemError {
  return Problem.of(code, detail, {
    ...(members && { members }),
    ...(retryAfterSeconds && { headers: { 'retry-after': String(retryAfterSeconds) } }),
  })
}
