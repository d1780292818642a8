import { Type } from '@sinclair/typebox'
import type { Address, Hex } from 'viem'
import type { GrantRow } from '../../db/schema'
import { RpcError, RpcFault } from '../chain/client'
import { type Budget, readBody } from '../http/body'
import { clientOf } from '../http/client'
import { assertUnpacked } from '../http/methods'
import { corsHeaders } from '../http/problem'
import * as RateLimit from '../http/rate-limit'
import * as AddressText from '../protocol/Address'
import * as Json from '../protocol/Json'
import * as Permit from '../protocol/Permit'
import type { Code } from '../protocol/Problem'
import * as Problem from '../protocol/Problem'
import * as Schema from '../protocol/Schema'
import { dayMs } from '../protocol/Time'
import type { Meter } from '../settlement/state/metrics'
import { createClients, networkOf } from './clients'
import {
  approveCall,
  createSemaphore,
  estimateApprove,
  idle,
  readFacts,
  type Semaphore,
  tipOf,
} from './facts'
import * as Grant from './Grant'
import type { Funded, Ledger, Sponsored, SponsorSettlement } from './ledger'

/** A request for a grant. */
export type SponsorRequest = {
  address: unknown
  network?: unknown
  signature?: unknown
  /** The client for the counters: its IPv4 address or the /64 of its IPv6 address. */
  client: string
}

/** JSON of a grant. */
export type Granted = {
  granted: true
  transaction: Hex
  amountWei: string
  network: string
  token: Address
  spender: Address
  /** The approve to sign and send: the address's balance now pays for it. */
  approve: Grant.Approve
  /** Ways that this address could have used without a grant. */
  alternatives: readonly Grant.Alternative[]
}

export type Result = { kind: 'granted'; body: Granted } | GrantRefusal

type Amount = Extract<Judged, { kind: 'amount' }>

export type Granting = {
  /** Answers one request; a grant is confirmed then. Rejects only on internal faults. */
  grant(request: SponsorRequest): Promise<Result>
}

export type GrantingOptions = {
  settlement: SponsorSettlement
  ledger: Ledger
  networks: readonly Sponsored[]
  /** Accounts that get nothing: our own, and contracts of the network. */
  excluded: readonly Address[]
  meter: Meter
  now: () => number
  waitMs: () => number
}

/** Requests that read the chain at once, and those that wait. */
const readingMax = 8
const waitingMax = 256

const unusedMaxAgeMs = 1_000
const lookedMax = 1_000

/** Refusals of one request, not of its address. */
const ownCodes: readonly Code[] = ['signature-required', 'rate-limited']

const known = {
  'under-way': 'The address is being sponsored; the transaction is on its way.',
  confirmed: 'The address was sponsored before; it happens once.',
  lost: 'The address was sponsored before; the grant did not arrive and is not repeated.',
} as const

type Asked = { network: Sponsored; address: Address; signature: string | undefined }

type Context = GrantingOptions & {
  clients: ReturnType<typeof createClients>
  /** By the id of the grant; registered before the first await. */
  underWay: Map<string, Promise<Result>>
  semaphore: Semaphore
  /** Time (unix ms) of the last read of the use of grants, by the network of clients. */
  readAt: Map<string, number>
}

/** Gives native coin for one approve, once per address. */
export function createGranting(options: GrantingOptions): Granting {
  const { networks, meter } = options
  const excluded = new Set(options.excluded.map((address) => address.toLowerCase()))
  const context: Context = {
    ...options,
    clients: createClients(),
    underWay: new Map(),
    semaphore: createSemaphore(readingMax, waitingMax),
    readAt: new Map(),
  }
  const refusals = meter.counter('sponsor_refusals_total', 'Grants refused.', ['reason'])
  return {
    async grant(request) {
      const asked = parse(request, networks, excluded)
      const result = 'kind' in asked ? asked : await grant(context, asked, request.client)
      if (result.kind === 'granted') return result
      refusals.inc({ reason: result.code })
      if ('kind' in asked) return result
      const alternatives = Grant.alternatives(asked.network.asset)
      return { ...result, members: { ...result.members, alternatives } }
    },
  }
}

/** Sends a grant, or the top-up of one (`row`), if all checks pass. */
async function fund(
  context: Context,
  asked: Asked,
  client: string,
  row?: GrantRow,
): Promise<Result> {
  const { settlement, ledger, semaphore, clients, now } = context
  const { network, address } = asked
  const day = Grant.dayOf(now())
  const refusal = await refuseEarly(context, asked, client, day)
  if (refusal) return refusal
  const isTopped = (await ledger.findTopUp(network.id, address)) !== undefined
  const judging = semaphore.run(() =>
    row ? judgeAgain(settlement, network, row, isTopped) : judge(settlement, network, address),
  )
  if (judging === undefined) return notReady('Too many requests are being checked.', 1)
  const judged = await judging
  if (judged.kind === 'too-expensive') return notReady('Gas costs more than a grant may be.', 60)
  if (judged.kind === 'refused') return refusedBy(judged)
  if (!clients.take(client, day, address)) return tooMany(now())
  const request = {
    network,
    address,
    amountWei: judged.wei,
    isSigned: asked.signature !== undefined,
    approveHash: undefined,
    isTopUp: row !== undefined,
  }
  const funded = await ledger.fund(request, { waitMs: context.waitMs() })
  // Counts only grants that were sent for the client.
  if (funded.kind !== 'funded' && funded.kind !== 'pending') {
    clients.releaseReservation(client, day, address)
  }
  return resultOf(funded, asked, judged, now())
}

/** Allows one read a second for each network of clients, so that many requests cost few calls. */
function isNew({ readAt, now }: Context, key: string): boolean {
  if (Math.abs(now() - (readAt.get(key) ?? 0)) < unusedMaxAgeMs) return false
  readAt.delete(key)
  readAt.set(key, now())
  const [oldest] = readAt.keys()
  if (readAt.size > lookedMax && oldest !== undefined) readAt.delete(oldest)
  return true
}

/** The refusal that needs no read of the address, if any. */
async function refuseEarly(
  context: Context,
  { network, address, signature }: Asked,
  client: string,
  day: number,
): Promise<GrantRefusal | undefined> {
  const { settlement, ledger, clients, now } = context
  const room = await ledger.room(network)
  if (room === 'spent') return spent(now())
  if (room === 'signed' && signature === undefined) return unsigned(network, address)
  if (!clients.hasRoom(client, day)) return tooMany(now())
  if (!settlement.isReady(network.id)) return notReady('The network cannot send now.')
  const unused = clients.unused(client, day).filter((each) => each !== address) as Address[]
  if (unused.length === 0) return undefined
  if (isNew(context, networkOf(client))) {
    const still = new Set(await idle(settlement, network, unused))
    clients.settle(unused.filter((each) => !still.has(each)))
  }
  return clients.unused(client, day).some((each) => each !== address) ? unusedGrant : undefined
}

async function again(
  { ledger }: Context,
  { network, address }: Asked,
  approve?: Grant.Approve,
): Promise<Result> {
  const row = await ledger.find(network.id, address)
  if (row === undefined) throw new Error(`${address} has no grant`)
  const { transaction, state } = await ledger.standingOf(row)
  const confirmed = state === 'confirmed'
  const members = { transaction, confirmed, ...(approve && { approve }) }
  return refuse('already-sponsored', known[state], members)
}

/** Handles an address that was sponsored: one top-up if fees rose before it used the grant. */
async function once(
  context: Context,
  asked: Asked,
  client: string,
  row: GrantRow,
): Promise<Result> {
  const { state } = await context.ledger.standingOf(row)
  if (row.kind !== 'grant' || state !== 'confirmed') return again(context, asked)
  const result = await fund(context, asked, client, row)
  if (result.kind === 'granted' || result.code === 'settlement-pending') return result
  return again(context, asked, result.approve)
}

async function grant(context: Context, asked: Asked, client: string): Promise<Result> {
  const { ledger, underWay } = context
  const { network, address } = asked
  const id = Grant.idOf(network.id, address)
  const running = underWay.get(id)
  if (running === undefined) {
    const work = begin(context, asked, client)
    underWay.set(id, work)
    return work.finally(() => underWay.delete(id))
  }
  const result = await running
  if (await ledger.find(network.id, address)) return again(context, asked)
  // Share the result of the address with this request, but not a refusal of the other client.
  const isOwn = result.kind === 'refused' && ownCodes.includes(result.code)
  return isOwn ? grant(context, asked, client) : result
}

/** The only running work on an address: its caller registers it before anything is read. */
async function begin(context: Context, asked: Asked, client: string): Promise<Result> {
  const { network, address } = asked
  const row = await context.ledger.find(network.id, address)
  const started = row ? once(context, asked, client, row) : fund(context, asked, client)
  const result = await started.catch((error: unknown): Result | Promise<Result> => {
    if (!(error instanceof RpcFault || error instanceof RpcError)) throw error
    return row ? again(context, asked) : notReady('The network gives no complete answer.', 5)
  })
  // In between, a signed approve of the address was sponsored, or the transfer was lost.
  const isLost = result.kind === 'refused' && result.code === 'already-sponsored' && !row
  return isLost ? again(context, asked) : result
}

function parse(
  request: SponsorRequest,
  networks: readonly Sponsored[],
  excluded: ReadonlySet<string>,
): Asked | Result {
  const address = AddressText.parseStrict(request.address)
  if (address === undefined || BigInt(address) < 1n << 16n) {
    const detail = 'address must be an account: 0x and 40 hex digits, with its checksum if mixed.'
    return refuse('invalid-address', detail)
  }
  if (excluded.has(address.toLowerCase())) {
    return refuse('invalid-address', 'address belongs to the service or to a contract it uses.')
  }
  const [main] = networks
  if (main === undefined) return refuse('not-found', 'No network sponsors approvals.')
  const network =
    request.network === undefined ? main : networks.find(({ id }) => id === request.network)
  if (network === undefined) {
    const ids = networks.map(({ id }) => id).join(', ')
    return refuse('invalid-parameter', `network must be one that is sponsored: ${ids}.`)
  }
  const { signature } = request
  if (signature === undefined) return { network, address, signature }
  if (typeof signature !== 'string' || !Grant.isSigned(network.id, address, signature)) {
    const message = Grant.messageOf(network.id, address)
    const detail = `signature must be the EIP-191 signature of address over: ${message}`
    return refuse('invalid-signature', detail)
  }
  return { network, address, signature }
}

function resultOf(
  funded: Funded,
  { network, address }: Asked,
  { approve }: Amount,
  now: number,
): Result {
  switch (funded.kind) {
    case 'funded':
      return {
        kind: 'granted',
        body: {
          granted: true,
          transaction: funded.transaction,
          amountWei: String(funded.amountWei),
          network: network.id,
          token: network.asset.address,
          spender: Permit.permit2Address,
          approve,
          alternatives: Grant.alternatives(network.asset),
        },
      }
    case 'pending': {
      const { transaction } = funded
      const detail = 'The grant is sent and not confirmed yet; it is not sent twice.'
      return { ...refuse('settlement-pending', detail, { transaction }), retryAfterSeconds: 2 }
    }
    case 'lost': {
      const { transaction } = funded
      return refuse('already-sponsored', 'The grant did not arrive.', { transaction })
    }
    case 'taken':
      return refuse('already-sponsored', 'The address was sponsored before.')
    case 'full':
      return funded.room === 'spent' ? spent(now) : unsigned(network, address)
    case 'unavailable':
      return notReady(funded.detail, funded.retryAfterSeconds)
  }
}

/** The grant for an address, and the approve that it can sign with it. */
export type Judged =
  | { kind: 'amount'; wei: bigint; approve: Grant.Approve }
  | { kind: 'too-expensive' }
  | { kind: 'refused'; code: Code; detail: string; approve?: Grant.Approve | undefined }

/** Decides on an address that was never sponsored. Throws RpcFault or RpcError. */
export async function judge(
  settlement: SponsorSettlement,
  network: Sponsored,
  address: Address,
): Promise<Judged> {
  const seen = await survey(settlement, network, address)
  if (seen.kind === 'refused') return seen
  const { facts, price } = seen
  const amount = Grant.amountOf(facts.balanceWei, price, capOf(network))
  if (amount.kind === 'has-gas') {
    const detail = 'The address can pay for an approve: send it from the address.'
    return { kind: 'refused', code: 'has-gas', detail, approve: approveFor(network, seen, 0n) }
  }
  if (amount.kind === 'too-expensive') return amount
  return given(network, seen, amount.wei)
}

/**
 * The only top-up of a grant, or the reason against it. While the address has not approved, the
 * answer has the approve that the balance pays for. Throws RpcFault or RpcError.
 */
export async function judgeAgain(
  settlement: SponsorSettlement,
  network: Sponsored,
  row: GrantRow,
  isTopped: boolean,
): Promise<Judged> {
  const seen = await survey(settlement, network, row.address)
  if (seen.kind === 'refused') return seen
  const { facts, price } = seen
  const cap = capOf(network)
  const wei = isTopped
    ? undefined
    : Grant.topUpOf(facts.balanceWei, price, { amountWei: row.amountWei, cap })
  if (wei !== undefined) return given(network, seen, wei)
  const approve = approveFor(network, seen, 0n)
  const detail = 'The address was sponsored before; it happens once. Send the approve from it.'
  return { kind: 'refused', code: 'already-sponsored', detail, approve }
}

type Survey = { kind: 'good'; facts: Grant.Facts; price: Grant.Price }

async function survey(
  settlement: SponsorSettlement,
  network: Sponsored,
  address: Address,
): Promise<Survey | Extract<Judged, { kind: 'refused' }>> {
  const { facts, baseFeeWei } = await readFacts(settlement, network, address)
  if (facts.code === 'eoa' && facts.allowanceAtomic > 0n) {
    const detail = 'The address has approved Permit2 already: pay now.'
    return { kind: 'refused', code: 'already-approved', detail }
  }
  const refusal = Grant.refusalOf(facts, network.asset, network.sponsor)
  if (refusal) return { kind: 'refused', ...refusal }
  const [gas, tipWei] = await Promise.all([
    estimateApprove(settlement, network, address),
    tipOf(settlement, network, baseFeeWei),
  ])
  if (gas === undefined) {
    const detail = 'The token refuses this address: pay from another.'
    return { kind: 'refused', code: 'approve-fails', detail }
  }
  return { kind: 'good', facts, price: { gas, baseFeeWei, tipWei } }
}

function given(network: Sponsored, seen: Survey, wei: bigint): Judged {
  const approve = approveFor(network, seen, wei)
  return approve ? { kind: 'amount', wei, approve } : { kind: 'too-expensive' }
}

function approveFor(
  { asset, chainId }: Sponsored,
  { facts, price }: Survey,
  grantWei: bigint,
): Grant.Approve | undefined {
  const { nonce, balanceWei } = facts
  const has = { nonce, balanceWei: balanceWei + grantWei }
  return Grant.approveOf(approveCall(asset.address), chainId, price, has)
}

function capOf({ sponsor, asset }: Sponsored): bigint {
  return Grant.capWei(sponsor, asset.decimals)
}

/** The problem of a refused grant. */
export type Refused = {
  code: Code
  detail: string
  members?: Readonly<Record<string, unknown>>
  retryAfterSeconds?: number
}

export type GrantRefusal = { kind: 'refused'; approve?: Grant.Approve } & Refused

export function refusedBy({
  code,
  detail,
  approve,
}: Extract<Judged, { kind: 'refused' }>): GrantRefusal {
  return { ...refuse(code, detail, approve && { approve }), ...(approve && { approve }) }
}

/** A refusal with a short Retry-After: it ends as soon as the earlier address has approved. */
export const unusedGrant: GrantRefusal = {
  ...refuse('rate-limited', 'An address that was sponsored for this client has not approved yet.'),
  retryAfterSeconds: 2,
}

export function unsigned(network: Sponsored, address: Address): GrantRefusal {
  const message = Grant.messageOf(network.id, address)
  const detail = 'Half of the budget is spent: the address must sign the message (EIP-191).'
  return refuse('signature-required', detail, { message })
}

export function spent(now: number): GrantRefusal {
  const detail = 'The sponsoring budget of today is spent; it starts again at 0:00 UTC.'
  return { ...refuse('budget-spent', detail), retryAfterSeconds: secondsLeft(now) }
}

export function tooMany(now: number): GrantRefusal {
  const detail = 'Enough addresses were sponsored for this client today; try again tomorrow (UTC).'
  return { ...refuse('rate-limited', detail), retryAfterSeconds: secondsLeft(now) }
}

export function notReady(detail: string, retryAfterSeconds = 5): GrantRefusal {
  return { ...refuse('not-ready', detail), retryAfterSeconds }
}

export function refuse(
  code: Code,
  detail: string,
  members?: Readonly<Record<string, unknown>>,
): GrantRefusal {
  return { kind: 'refused', code, detail, ...(members && { members }) }
}

/** Until the next UTC day. */
function secondsLeft(now: number): number {
  return Math.max(1, Math.ceil((Grant.dayOf(now) + dayMs - now) / 1000))
}

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
