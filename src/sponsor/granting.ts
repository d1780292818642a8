import { Type } from '@sinclair/typebox'
import type { Address } from 'viem'
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
import * as Problem from '../protocol/Problem'
import * as Schema from '../protocol/Schema'
import { dayMs, dayStart } from '../protocol/Time'
import { createSemaphore } from '../settlement/read/holdings'
import type { Meter } from '../settlement/state/metrics'
import { createClients, networkOf } from './clients'
import { approveCall, estimateApprove, idle, readHolder, tipOf } from './facts'
import * as Grant from './Grant'
import {
  type Funded,
  roomOf,
  type Sponsored,
  type SponsorLedger,
  sendGrant,
  standingOf,
} from './ledger'

/** A request for a grant. */
type SponsorRequest = {
  address: unknown
  network?: unknown
  signature?: unknown
  /** The client for the counters: its IPv4 address or the /64 of its IPv6 address. */
  client: string
}

type GrantRefusal = {
  kind: 'refused'
  code: Problem.Code
  detail: string
  members?: Readonly<Record<string, unknown>> & { approve?: Grant.Approve }
  retryAfterSeconds?: number
}

type Granted = { kind: 'granted'; body: ReturnType<typeof bodyOf> }

type GrantingOptions = {
  ledger: SponsorLedger
  /** Accounts that get nothing: our own, and contracts of the network. */
  excluded: readonly Address[]
  meter: Meter
  /** Longest wait for a confirmation, ms. */
  waitMs: () => number
}

/** Requests that read the chain at once, and those that wait. */
const readingMax = 8
const waitingMax = 256

const unusedMaxAgeMs = 1_000
const lookedMax = 1_000

/** Refusals of one request, not of its address. */
const ownCodes: readonly Problem.Code[] = ['signature-required', 'rate-limited']

const known = {
  'under-way': 'The address is being sponsored; the transaction is on its way.',
  confirmed: 'The address was sponsored before; it happens once.',
  lost: 'The address was sponsored before; the grant did not arrive and is not repeated.',
} as const

type Asked = { network: Sponsored; address: Address; signature: string | undefined; client: string }

type Context = ReturnType<typeof contextOf>

function contextOf(options: GrantingOptions) {
  return {
    ...options,
    ...options.ledger,
    clients: createClients(),
    /** By the id of the grant; registered before the first await. */
    underWay: new Map<string, Promise<Granted | GrantRefusal>>(),
    semaphore: createSemaphore(readingMax, waitingMax),
    /** Time (unix ms) of the last read of the use of grants, by the network of clients. */
    readAt: new Map<string, number>(),
  }
}

export type Granting = ReturnType<typeof createGranting>

/** Gives native coin for one approve, once per address. */
export function createGranting(options: GrantingOptions) {
  const context = contextOf(options)
  const refusals = options.meter.counter('sponsor_refusals_total', 'Grants refused.', ['reason'])
  return {
    /** Answers one request; a grant is confirmed then. Rejects only on internal faults. */
    async grant(request: SponsorRequest): Promise<Granted | GrantRefusal> {
      const asked = parse(context, request)
      const result = 'kind' in asked ? asked : await grant(context, asked)
      if (result.kind === 'granted') return result
      refusals.inc({ reason: result.code })
      if ('kind' in asked) return result
      const alternatives = Grant.alternatives(asked.network.asset)
      return { ...result, members: { ...result.members, alternatives } }
    },
  }
}

function parse(
  { networks, excluded }: Context,
  { address: named, network: id, signature, client }: SponsorRequest,
): Asked | GrantRefusal {
  const address = AddressText.parseStrict(named)
  if (address === undefined || BigInt(address) < 1n << 16n) {
    const detail = 'address must be an account: 0x and 40 hex digits, with its checksum if mixed.'
    return refuse('invalid-address', detail)
  }
  if (excluded.some((each) => AddressText.equal(each, address))) {
    return refuse('invalid-address', 'address belongs to the service or to a contract it uses.')
  }
  if (networks.length === 0) return refuse('not-found', 'No network sponsors approvals.')
  const network = id === undefined ? networks[0] : networks.find((each) => each.id === id)
  if (network === undefined) {
    const ids = networks.map((each) => each.id).join(', ')
    return refuse('invalid-parameter', `network must be one that is sponsored: ${ids}.`)
  }
  if (signature === undefined) return { network, address, signature, client }
  if (typeof signature !== 'string' || !Grant.isSigned(network.id, address, signature)) {
    const message = Grant.messageOf(network.id, address)
    const detail = `signature must be the EIP-191 signature of address over: ${message}`
    return refuse('invalid-signature', detail)
  }
  return { network, address, signature, client }
}

async function grant(context: Context, asked: Asked): Promise<Granted | GrantRefusal> {
  const { grants, underWay } = context
  const { network, address } = asked
  const id = Grant.idOf(network.id, address)
  const running = underWay.get(id)
  if (running === undefined) {
    const work = begin(context, asked)
    underWay.set(id, work)
    return work.finally(() => underWay.delete(id))
  }
  const result = await running
  if (await grants.find(network.id, address)) return again(context, asked)
  // Share the result of the address with this request, but not a refusal of the other client.
  const isOwn = result.kind === 'refused' && ownCodes.includes(result.code)
  return isOwn ? grant(context, asked) : result
}

/** The only running work on an address: its caller registers it before anything is read. */
async function begin(context: Context, asked: Asked): Promise<Granted | GrantRefusal> {
  const row = await context.grants.find(asked.network.id, asked.address)
  const started = row ? once(context, asked, row) : fund(context, asked)
  const result = await started.catch((error: unknown) => {
    if (!(error instanceof RpcFault || error instanceof RpcError)) throw error
    return row ? again(context, asked) : notReady('The network gives no complete answer.', 5)
  })
  // In between, a signed approve of the address was sponsored, or the transfer was lost.
  const isLost = result.kind === 'refused' && result.code === 'already-sponsored' && !row
  return isLost ? again(context, asked) : result
}

/** Handles an address that was sponsored: one top-up if fees rose before it used the grant. */
async function once(
  context: Context,
  asked: Asked,
  row: GrantRow,
): Promise<Granted | GrantRefusal> {
  const { state } = await standingOf(context.ledger, row)
  if (row.kind !== 'grant' || state !== 'confirmed') return again(context, asked)
  const result = await fund(context, asked, row)
  if (result.kind === 'granted' || result.code === 'settlement-pending') return result
  return again(context, asked, result.members?.approve)
}

async function again(
  { ledger }: Context,
  { network, address }: Asked,
  approve?: Grant.Approve,
): Promise<GrantRefusal> {
  const row = await ledger.grants.find(network.id, address)
  if (row === undefined) throw new Error(`${address} has no grant`)
  const { transaction, state } = await standingOf(ledger, row)
  const confirmed = state === 'confirmed'
  const members = { transaction, confirmed, ...(approve && { approve }) }
  return refuse('already-sponsored', known[state], members)
}

/** Sends a grant, or the top-up of one (`row`), if all checks pass. */
async function fund(
  context: Context,
  asked: Asked,
  row?: GrantRow,
): Promise<Granted | GrantRefusal> {
  const { ledger, clients, now } = context
  const { network, address, client } = asked
  const day = dayStart(now())
  const refusal = await refuseEarly(context, asked, day)
  if (refusal) return refusal
  const judging = context.semaphore.run(() => judge(ledger, asked, row))
  if (judging === undefined) return notReady('Too many requests are being checked.', 1)
  const judged = await judging
  if (judged.kind === 'refused') return judged
  if (!clients.take(client, day, address)) return tooMany(now())
  const request = {
    network,
    address,
    amountWei: judged.wei,
    isSigned: asked.signature !== undefined,
    approveHash: undefined,
    isTopUp: row !== undefined,
  }
  const funded = await sendGrant(ledger, request, context.waitMs())
  // Counts only grants that were sent for the client.
  if (funded.kind !== 'funded' && funded.kind !== 'pending') {
    clients.releaseReservation(client, day, address)
  }
  if (funded.kind !== 'funded') return refusalFor(funded, asked, now())
  return { kind: 'granted', body: bodyOf(funded, asked, judged.approve) }
}

/** The refusal that needs no read of the address, if any. */
async function refuseEarly(
  context: Context,
  asked: Asked,
  day: number,
): Promise<GrantRefusal | undefined> {
  const { settlement, clients, now } = context
  const { network, address, client } = asked
  const room = await roomOf(context.ledger, network)
  if (room === 'spent') return spent(now())
  if (room === 'signed' && asked.signature === undefined) return unsigned(asked)
  if (!clients.hasRoom(client, day)) return tooMany(now())
  if (!settlement.isReady(network.id)) return notReady('The network cannot send now.')
  const unused = clients.unused(client, day).filter((each) => each !== address)
  if (unused.length === 0) return undefined
  if (isNew(context, networkOf(client))) {
    const still = new Set(await idle(settlement, network, unused))
    clients.settle(unused.filter((each) => !still.has(each)))
  }
  if (clients.unused(client, day).every((each) => each === address)) return undefined
  // A short Retry-After: it ends as soon as the earlier address has approved.
  const detail = 'An address that was sponsored for this client has not approved yet.'
  return { ...refuse('rate-limited', detail), retryAfterSeconds: 2 }
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

/**
 * The grant for an address, and the approve that it can sign with it, or the reason against it. `row`:
 * the grant for which this would be the only top-up. While the address has not approved, a refusal has
 * the approve that the balance pays for. Throws RpcFault or RpcError.
 */
async function judge(
  { settlement, grants }: SponsorLedger,
  { network, address }: Asked,
  row: GrantRow | undefined,
): Promise<GrantRefusal | { kind: 'amount'; wei: bigint; approve: Grant.Approve }> {
  const { asset, sponsor, chainId } = network
  const { facts, baseFeeWei } = await readHolder(settlement, network, address)
  if (facts.code === 'eoa' && facts.allowanceAtomic > 0n) {
    return refuse('already-approved', 'The address has approved Permit2 already: pay now.')
  }
  const refusal = Grant.refusalOf(facts, asset, sponsor)
  if (refusal) return refuse(refusal.code, refusal.detail)
  const [gas, tipWei] = await Promise.all([
    estimateApprove(settlement, network, address),
    tipOf(settlement, network, baseFeeWei),
  ])
  if (gas === undefined) {
    return refuse('approve-fails', 'The token refuses this address: pay from another.')
  }
  const price = { gas, baseFeeWei, tipWei }
  const { balanceWei, nonce } = facts
  const approveWith = (grantWei: bigint) => {
    const has = { nonce, balanceWei: balanceWei + grantWei }
    return Grant.approveOf(approveCall(asset.address), chainId, price, has)
  }
  const refuseWith = (code: Problem.Code, detail: string) => {
    const approve = approveWith(0n)
    return refuse(code, detail, approve && { approve })
  }
  const cap = Grant.capWei(sponsor, asset.decimals)
  let wei: bigint | undefined
  if (row) {
    const isTopped = (await grants.findTopUp(network.id, address)) !== undefined
    const { amountWei } = row
    wei = isTopped ? undefined : Grant.topUpOf(balanceWei, price, { amountWei, cap })
    if (wei === undefined) {
      const detail = 'The address was sponsored before; it happens once. Send the approve from it.'
      return refuseWith('already-sponsored', detail)
    }
  } else {
    const amount = Grant.amountOf(balanceWei, price, cap)
    if (amount.kind === 'has-gas') {
      const detail = 'The address can pay for an approve: send it from the address.'
      return refuseWith('has-gas', detail)
    }
    wei = amount.kind === 'amount' ? amount.wei : undefined
  }
  const approve = wei === undefined ? undefined : approveWith(wei)
  if (wei === undefined || approve === undefined) {
    return notReady('Gas costs more than a grant may be.', 60)
  }
  return { kind: 'amount', wei, approve }
}

/** JSON of a grant. */
function bodyOf(
  { transaction, amountWei }: Extract<Funded, { kind: 'funded' }>,
  { network }: Asked,
  /** To be signed and sent: the address's balance now pays for it. */
  approve: Grant.Approve,
) {
  return {
    granted: true,
    transaction,
    amountWei: String(amountWei),
    network: network.id,
    token: network.asset.address,
    spender: Permit.permit2Address,
    approve,
    /** Ways that this address could have used without a grant. */
    alternatives: Grant.alternatives(network.asset),
  }
}

function refusalFor(
  funded: Exclude<Funded, { kind: 'funded' }>,
  asked: Asked,
  now: number,
): GrantRefusal {
  switch (funded.kind) {
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
      return funded.room === 'spent' ? spent(now) : unsigned(asked)
    case 'unavailable':
      return notReady(funded.detail, funded.retryAfterSeconds)
  }
}

function unsigned({ network, address }: Asked): GrantRefusal {
  const message = Grant.messageOf(network.id, address)
  const detail = 'Half of the budget is spent: the address must sign the message (EIP-191).'
  return refuse('signature-required', detail, { message })
}

function spent(now: number): GrantRefusal {
  const detail = 'The sponsoring budget of today is spent; it starts again at 0:00 UTC.'
  return { ...refuse('budget-spent', detail), retryAfterSeconds: secondsLeft(now) }
}

function tooMany(now: number): GrantRefusal {
  const detail = 'Enough addresses were sponsored for this client today; try again tomorrow (UTC).'
  return { ...refuse('rate-limited', detail), retryAfterSeconds: secondsLeft(now) }
}

function notReady(detail: string, retryAfterSeconds = 5): GrantRefusal {
  return { ...refuse('not-ready', detail), retryAfterSeconds }
}

function refuse(
  code: Problem.Code,
  detail: string,
  members?: GrantRefusal['members'],
): GrantRefusal {
  return { kind: 'refused', code, detail, ...(members && { members }) }
}

/** Until the next UTC day. */
function secondsLeft(now: number): number {
  return Math.max(1, Math.ceil((dayStart(now) + dayMs - now) / 1000))
}

type SponsorHandlerOptions = {
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
  if (result.kind === 'granted') {
    const headers = { ...corsHeaders, 'Cache-Control': 'no-store' }
    return Response.json(result.body, { headers })
  }
  const { code, detail, members, retryAfterSeconds } = result
  throw Problem.of(code, detail, {
    ...(members && { members }),
    ...(retryAfterSeconds && { headers: { 'retry-after': String(retryAfterSeconds) } }),
  })
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

/** Body of a request. `parse` checks the members together with the state of the address. */
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
