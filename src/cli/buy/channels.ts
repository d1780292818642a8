import { existsSync } from 'node:fs'
import type { Hex } from 'viem'
import type { Client } from '../../chain/client'
import * as Receipt from '../../chain/receipt'
import { readEnv } from '../../config/env'
import * as Amount from '../../protocol/Amount'
import * as Channel from '../../protocol/Channel'
import * as Crypto from '../../protocol/Crypto'
import { encodeJson } from '../../protocol/Header'
import * as Network from '../../protocol/Network'
import { CommandError } from '../Command'
import type { Run } from '../commands'
import { openSpending } from '../mcp/spending'
import { ownFees, sendCall } from './allowance'
import { atNode, judge, readChannel, replyOf } from './by-channel'
import { type Held, openChannelFiles, stateFile } from './channel-files'
import { isAmount, readKey } from './key'
import { hashText, oneLine } from './outcome'
import * as Terms from './Terms'
import * as Voucher from './Voucher'

type Options = Run<'channels'>
type Open = Held & { state: Voucher.State }

/** Stands for the payment of a refund, which is none. */
const noPayment: Voucher.Sent = {
  ...{ request: '', idempotencyKey: '', payment: '', amountAtomic: 0n, hasDeposit: false },
}

/** How long a node may take to show a transaction, ms. */
const shownMs = 30_000

/** Lists the payment channels of this user, or closes one. Returns the exit code. */
export async function channels(options: Options): Promise<number> {
  const { verb, amount, withdraw } = options
  if (verb !== 'close' && (amount !== undefined || withdraw))
    throw new CommandError('--amount and --withdraw are for channels close.')
  if (amount !== undefined && (!isAmount(amount) || Number(amount) === 0))
    throw new CommandError('--amount is an amount such as 0.25.')
  const files = openChannelFiles(stateFile(options))
  if (verb !== 'close') return list(files.list(), options)
  const hex = readEnv(options.env)('PAY_KEY')
  if (hex === undefined) throw new CommandError('A private key is needed: set PAY_KEY.')
  const privateKey = readKey(hex)
  const id = choose(files.list(), options, Crypto.addressOf(privateKey))
  const held = files.hold(id)
  if (held?.state === undefined) {
    held?.release()
    throw new CommandError(`Another process uses ${id}: try again when it has ended.`)
  }
  try {
    const open = { ...held, state: held.state }
    const end = withdraw ? withdrawRest : refund
    await end(open, options, privateKey)
    return 0
  } finally {
    held.release()
  }
}

async function list(states: readonly Voucher.State[], options: Options): Promise<number> {
  const { rpc, out } = options
  const shown: object[] = []
  for (const state of states) {
    const read = (client: Client) => readChannel(client, state)
    const onChain = await atNode(state, rpc, read).catch((error) => {
      if (error instanceof CommandError) return undefined
      throw error
    })
    const id = Voucher.idOf(state)
    const { network, url, config } = state
    const balanceAtomic = onChain?.balanceAtomic ?? state.balanceAtomic
    const left = textOf(state, Voucher.restOf({ ...state, balanceAtomic }))
    const [balance, charged] = [textOf(state, balanceAtomic), textOf(state, state.chargedAtomic)]
    const claimed = onChain && textOf(state, onChain.claimedAtomic)
    const ends = onChain?.withdrawEndsAt && timeOf(onChain.withdrawEndsAt)
    const { payer, receiver, token: asset } = config
    const numbers = { left, balance, charged, claimed: claimed ?? null, withdrawal: ends ?? null }
    shown.push({ id, network, payer, receiver, asset, url, ...numbers })
    if (options.json) continue
    out(`${id}  ${network}  ${left} of ${balance} are left`)
    out(`  ${oneLine(url)}, payer ${payer}`)
    out(
      `  charged ${charged}, ${claimed === undefined ? 'its node does not answer' : `claimed ${claimed}`}`,
    )
    if (ends !== undefined)
      out(`  a withdrawal has begun: close it again with --withdraw after ${ends}`)
  }
  if (options.json) out(JSON.stringify(shown))
  else if (states.length === 0) out('There are no channels.')
  return 0
}

function choose(states: readonly Voucher.State[], { operand, verb }: Options, payer: string): Hex {
  const own = states.filter(({ config }) => config.payer === payer).map(Voucher.idOf)
  const found = operand === verb ? own : own.filter((id) => id.startsWith(operand.toLowerCase()))
  const [id, other] = found
  if (id !== undefined && other === undefined) return id
  if (id === undefined) throw new CommandError(`The wallet ${payer} has no such channel here.`)
  throw new CommandError(`Name one of ${found.join(', ')}.`)
}

/** Asks the merchant for what is left, by a GET to a URL that was bought. */
async function refund(open: Open, options: Options, privateKey: Uint8Array): Promise<void> {
  const { rpc } = options
  let { state } = open
  const instead = '--withdraw gets it back without the merchant.'
  const offered = await ask(state.url, {}, instead)
  const terms = offered.required && Voucher.termsOf(state, offered.required, offered.further)
  if (terms === undefined)
    throw new CommandError(`${state.url} does not offer this channel any more; ${instead}`)
  const amountAtomic = atomicOf(state, options.amount)
  for (let tries = 1; ; tries++) {
    const refund = amountAtomic === undefined ? {} : { amountAtomic }
    const payment = Voucher.sign(state, terms, privateKey, { refund })
    const reply = await ask(state.url, { 'payment-signature': encodeJson(payment) }, instead)
    const { settled, required } = reply
    if (settled?.success === true) {
      const hash = hashText(String(settled.transaction))
      return finish({ ...open, state }, options, hash as Hex)
    }
    const { next, fault, isCorrected } = await judge(state, noPayment, reply, { rpc })
    open.save(next)
    state = next
    if (isCorrected && tries === 1) continue
    const why = fault ?? oneLine(String((settled ?? required)?.error ?? settled?.errorReason ?? ''))
    throw new CommandError(`The merchant refunds nothing (${why || reply.end}); ${instead}`)
  }
}

/** What a request to a merchant says. Throws a CommandError when it does not answer. */
async function ask(
  url: string,
  headers: Readonly<Record<string, string>>,
  instead: string,
): Promise<Voucher.Reply> {
  try {
    // A credential is for this URL, so it must not follow a redirect.
    const response = await fetch(url, { headers, redirect: 'manual' })
    const reply = await replyOf(response)
    await response.body?.cancel()
    return reply
  } catch {
    throw new CommandError(`${new URL(url).origin} did not answer; ${instead}`)
  }
}

/** Records what a transaction gave back, as its logs show. */
async function finish(open: Open, options: Options, hash: Hex): Promise<void> {
  const { state } = open
  const { rpc, now, out, env } = options
  const id = Voucher.idOf(state)
  await atNode(state, rpc, async (client) => {
    const until = now() + shownMs
    let receipt: Receipt.Receipt | undefined
    while (receipt === undefined) {
      receipt = Receipt.parse(await client.call('eth_getTransactionReceipt', [hash]))
      if (receipt === undefined && now() > until)
        throw new CommandError(`The node does not show ${hash}, so nothing is recorded yet.`)
      if (receipt === undefined) await Bun.sleep(200)
    }
    const { logs } = receipt
    const returned =
      Channel.amountIn(logs, 'refunded', id) ?? Channel.amountIn(logs, 'withdrawFinalized', id)
    if (!returned) throw new CommandError(`The transaction ${hash} gave nothing back.`)
    out(`${textOf(state, returned)} came back, in transaction ${hash}`)
    const balanceAtomic = state.balanceAtomic - returned
    const after = { ...state, balanceAtomic, isClosing: false }
    if (Voucher.restOf(after) === 0n) open.forget()
    else open.save(after)
    const file = stateFile({ state: options.state, env })
    if (!existsSync(file)) return
    const spending = openSpending(file, now)
    spending.refund(id, returned)
    spending.close()
  })
}

/** The contract's own withdrawal: begins it, or ends it when the delay is over. */
async function withdrawRest(open: Open, options: Options, privateKey: Uint8Array): Promise<void> {
  const { state } = open
  const { rpc, now, out } = options
  const chainId = Network.chainIdOf(state.network) ?? 0
  const ended = await atNode(state, rpc, async (client) => {
    const { balanceAtomic, claimedAtomic, withdrawEndsAt } = await readChannel(client, state)
    const send = async (call: Channel.Call) => {
      const fees = await ownFees(client, state.config.payer, call)
      return sendCall(client, { privateKey, rpc, now }, { chainId, ...fees, ...call })
    }
    if (withdrawEndsAt !== undefined) {
      if (now() > withdrawEndsAt * 1000) return send(Channel.finalizeWithdrawCall(state.config))
      const ends = timeOf(withdrawEndsAt)
      throw new CommandError(`The withdrawal ends at ${ends}: run this again after that.`)
    }
    const chargedAtomic = Amount.greatest(state.chargedAtomic, claimedAtomic)
    const rest = atomicOf(state, options.amount) ?? Voucher.restOf({ chargedAtomic, balanceAtomic })
    if (rest === 0n) throw new CommandError('Nothing is left in this channel.')
    const hash = await send(Channel.initiateWithdrawCall(state.config, rest))
    open.save({ ...state, balanceAtomic, chargedAtomic, isClosing: true })
    const ends = timeOf(Math.ceil(now() / 1000) + state.config.withdrawDelay)
    out(`The withdrawal of ${textOf(state, rest)} has begun, in transaction ${hash}`)
    out(`Run the same command again after ${ends}.`)
    return undefined
  })
  if (ended !== undefined) await finish(open, options, ended)
}

/** `0.490000 USDC`, or atomic units of an unknown asset. */
function textOf({ network, config }: Voucher.State, atomic: bigint): string {
  const asset = Terms.known(network, config.token)
  if (asset === undefined) return `${atomic}`
  return `${Amount.toDecimal(atomic, asset.decimals)} ${asset.symbol}`
}

function atomicOf({ network, config }: Voucher.State, amount: string | undefined) {
  const decimals = Terms.known(network, config.token)?.decimals ?? 6
  return amount === undefined ? undefined : Amount.fromDecimal(amount, decimals)
}

function timeOf(seconds: number): string {
  return new Date(seconds * 1000).toISOString().replace('.000Z', 'Z')
}
