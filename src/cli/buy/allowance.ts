import type { Address, Hex } from 'viem'
import { type Client, RpcFault } from '../../chain/client'
import type { Call } from '../../chain/multicall'
import * as Receipt from '../../chain/receipt'
import * as Token from '../../chain/token'
import * as Transaction from '../../chain/transaction'
import * as Abi from '../../protocol/Abi'
import * as Amount from '../../protocol/Amount'
import * as Crypto from '../../protocol/Crypto'
import * as Json from '../../protocol/Json'
import * as Permit from '../../protocol/Permit'
import * as Grant from '../../sponsor/Grant'
import { CommandError } from '../Command'
import { quantity, readReceipt, readWord, withClient } from '../nodes'
import { poll } from '../poll'
import { readAnswerText } from './body'
import type { PermitInfo } from './Credential'
import type { Signer } from './key'
import { hashText, problemOf, say } from './outcome'
import type { Terms } from './Terms'

/** Ways for a wallet without an approval to pay by Permit2, the cheapest first. */

export type Wallet = Signer & {
  /** RPC URL of the network; undefined: its public one. */
  rpc: string | undefined
  /** Unix ms. */
  now: () => number
}

/** Longest wait for a confirmation or a grant, ms. */
const waitMs = 60_000
const permitSeconds = 300n

const permitType = Abi.hashOf(
  'Permit(address owner,address spender,uint256 value,uint256 nonce,uint256 deadline)',
)

/**
 * Signs an EIP-2612 permit of the token for Permit2, of exactly the amount: a signature instead of an
 * approve. x402 specs/extensions/eip2612_gas_sponsoring.md. Throws a CommandError.
 */
export function signPermit(terms: Terms, wallet: Wallet): Promise<PermitInfo> {
  return withClient(terms.network, wallet.rpc, async (client) => {
    const { asset, chainId, amountAtomic } = terms
    const { payer: from } = wallet
    const spender = Permit.permit2Address
    const nonce = await word(client, Token.nonces(asset.address, from))
    const deadline = BigInt(Math.floor(wallet.now() / 1000)) + permitSeconds
    say(`permit     Permit2 may transfer ${amountAtomic} atomic units, by signature (EIP-2612)`)
    const words = permitType + Abi.encode(from, spender, amountAtomic, nonce, deadline)
    const domain = Abi.domainSeparator(chainId, asset.address, asset.eip712)
    return {
      ...{ from, asset: asset.address, spender, version: '1' },
      ...{ amount: String(amountAtomic), nonce: String(nonce), deadline: String(deadline) },
      signature: Crypto.sign(Abi.typedDigest(domain, words), wallet.privateKey),
    }
  })
}

/**
 * Approves Permit2 for the token, without an expiry. Requests native coin from the seller when the
 * wallet cannot pay for the approve. Prints each step. Throws a CommandError.
 */
export function approve(terms: Terms, wallet: Wallet, shop: URL): Promise<void> {
  return withClient(terms.network, wallet.rpc, async (client) => {
    const { payer: owner } = wallet
    const { asset } = terms
    const allowance = Token.allowance(asset.address, owner, Permit.permit2Address)
    if ((await word(client, allowance)) >= terms.amountAtomic) return
    const call = Token.approve(asset.address, Permit.permit2Address, Amount.max)
    const gas = await quantity(client, 'eth_estimateGas', [{ from: owner, ...call }])
    let funds = await readFunds(client, owner)
    let offered: Offered | undefined
    if (funds.balanceWei < gas * funds.price) {
      offered = await askForGas(terms, wallet, shop)
      await until(wallet, 'the grant has arrived', async () => {
        funds = await readFunds(client, owner)
        const neededWei = offered ? offered.gasLimit * offered.maxFeeWei : gas * funds.price
        return funds.balanceWei >= neededWei
      })
    }
    const maxFeeWei = Amount.least(2n * funds.price, funds.balanceWei / gas)
    const own = { maxTipWei: 0n, maxFeeWei, gasLimit: gas }
    const { chainId } = terms
    const hash = await sendCall(client, wallet, { chainId, ...call }, offered ?? own)
    say(`approve    Permit2 may transfer ${asset.symbol} of ${owner}, ${hash}`)
  })
}

/**
 * Sends a call of the wallet, which pays its gas, by default at the fees of its node. Resolves with its
 * hash when it has succeeded. Throws a CommandError, also when the wallet has too little.
 */
export async function sendCall(
  client: Client,
  wallet: Wallet,
  call: Call & { chainId: number },
  offered?: Offered,
): Promise<Hex> {
  const { payer: owner, privateKey } = wallet
  const fees = offered ?? (await ownFees(client, owner, call))
  const nonce = Number(await quantity(client, 'eth_getTransactionCount', [owner, 'pending']))
  const signed = Transaction.sign({ nonce, ...fees, ...call, valueWei: 0n }, privateKey)
  const { hash } = signed
  await client.call('eth_sendRawTransaction', [signed.raw])
  await until(wallet, `${hash} is confirmed`, async () => {
    const receipt = await readReceipt(client, hash)
    if (receipt?.success === false)
      throw new CommandError(`The transaction ${hash} failed on chain.`)
    return receipt !== undefined
  })
  return hash
}

async function ownFees(client: Client, from: Address, { to, data }: Call): Promise<Offered> {
  const gasLimit = await quantity(client, 'eth_estimateGas', [{ from, to, data }])
  const { price, balanceWei } = await readFunds(client, from)
  if (balanceWei < 2n * price * gasLimit)
    throw new CommandError(`The wallet ${from} needs ${2n * price * gasLimit} wei for gas.`)
  return { gasLimit, maxFeeWei: 2n * price, maxTipWei: 0n }
}

/**
 * Gas and fees of the approve that the seller has funded. The buyer builds receiver and calldata
 * itself.
 */
type Offered = { gasLimit: bigint; maxFeeWei: bigint; maxTipWei: bigint }

/** The seller's grant of native coin. It is given once, so an earlier grant is accepted, too. */
async function askForGas(
  terms: Terms,
  { privateKey, payer: address }: Wallet,
  shop: URL,
): Promise<Offered | undefined> {
  const { network } = terms
  const message = Grant.messageOf(network, address)
  const signature = Crypto.sign(Crypto.messageDigest(message), privateKey)
  const url = new URL('/api/gas/sponsor', shop)
  let response: Response
  try {
    response = await fetch(url, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ address, network, signature }),
      redirect: 'manual',
    })
  } catch {
    throw new CommandError(`${url.origin} did not answer the request for gas.`)
  }
  if (response.ok) return readGrant(await readAnswerText(response))
  const problem = await problemOf(response)
  if (problem.transaction !== undefined) {
    say(`sponsor    ${problem.code}, ${problem.transaction}`)
    return undefined
  }
  throw new CommandError(
    `The wallet has no gas to approve Permit2, and none is given: ${problem.code}: ${problem.detail}`,
  )
}

/** Prints a grant. Sellers other than turnpike may omit `approve`. */
function readGrant(text: string): Offered | undefined {
  try {
    const json = Json.parse(text)
    const approve = Json.optional(json, 'approve', 'object')
    const amountWei = Json.read(json, 'amountWei', 'uint')
    const hash = hashText(Json.read(json, 'transaction', 'text'))
    const offered = approve && offeredOf(approve)
    say(`sponsor    ${amountWei} wei for the approve, ${hash}`)
    return offered
  } catch {
    throw new CommandError('The answer to the request for gas cannot be read.')
  }
}

/** Uses only gas and fees from the seller, so that the wallet can lose no more than the grant. */
function offeredOf(approve: Json.JsonObject): Offered {
  const gasLimit = Json.read(approve, 'gas', 'uint')
  const maxFeeWei = Json.read(approve, 'maxFeePerGas', 'uint')
  const maxTipWei = Json.read(approve, 'maxPriorityFeePerGas', 'uint')
  if (gasLimit === 0n || maxTipWei > maxFeeWei) throw new RangeError('not the fees of an approve')
  return { gasLimit, maxFeeWei, maxTipWei }
}

async function until({ now }: Wallet, what: string, condition: () => Promise<boolean>) {
  if (!(await poll({ now, waitMs }, condition)))
    throw new CommandError(`Waited too long until ${what}.`)
}

/** Price of a unit of gas now, without a tip, and the balance of an account, in wei. */
async function readFunds(client: Client, account: Address) {
  const block = Receipt.parseBlock(await client.call('eth_getBlockByNumber', ['latest', false]))
  if (block === undefined) throw new RpcFault('not a block')
  const balanceWei = await quantity(client, 'eth_getBalance', [account, 'latest'])
  return { price: block.baseFeeWei, balanceWei }
}

async function word(client: Client, call: Call): Promise<bigint> {
  const value = await readWord(client, call)
  if (value === undefined) throw new RpcFault('the token does not answer')
  return value
}
