import { bytesToHex, encodeFunctionData, maxUint256, numberToHex, parseAbi } from 'viem'
import { privateKeyToAccount } from 'viem/accounts'
import { multicallAddress } from '../../../src/chain/multicall'
import type { NetworkConfig } from '../../../src/config/Config'
import { account } from '../../../src/demo/accounts'
import { type Chain, execute } from '../../../src/demo/chains'
import * as Crypto from '../../../src/protocol/Crypto'
import * as Permit from '../../../src/protocol/Permit'
import * as Transfer from '../../../src/protocol/Transfer'
import {
  type Accept,
  challengeHash,
  challengesOf,
  inSeconds,
  type Required,
  randomNonce,
} from '../../harness/buyer'
import { payUpto } from '../../harness/upto'
import { modelPath, modelRequest } from './model'
import { path } from './network'

/** Generated wallets: so many that no candidate batches or confuses two payments of one payer. */
export type Payer = { address: `0x${string}`; privateKey: Uint8Array }

/** `upto` is the scheme of x402; the others pay by `exact`. */
export type Protocol = 'mpp' | 'x402' | 'upto'

/** Header by name and value that pays once. */
export type Credential = readonly [name: string, value: string]

const chunk = 128
const mintedAtomic = 1_000_000_000n

const abi = parseAbi([
  'function mint(address to, uint256 value)',
  'function approve(address spender, uint256 value) returns (bool)',
  'function aggregate3((address target, bool allowFailure, bytes callData)[] calls)',
])

const known: Payer[] = []

/** The first payers of an endless, constant list. */
export function payers(count: number): readonly Payer[] {
  while (known.length < count) {
    const privateKey = Crypto.keccak256(`payer ${known.length} of the benchmark`)
    known.push({ privateKey, address: Crypto.addressOf(privateKey) })
  }
  return known.slice(0, count)
}

/** Gives each of them 1,000 of the network's token. */
export async function mint(
  chain: Chain,
  { asset }: Pick<NetworkConfig, 'asset'>,
  holders: readonly Pick<Payer, 'address'>[],
): Promise<void> {
  const calls = holders.map(({ address }) => ({
    target: asset.address,
    allowFailure: false,
    callData: encodeFunctionData({ abi, functionName: 'mint', args: [address, mintedAtomic] }),
  }))
  for (let first = 0; first < calls.length; first += chunk) {
    const args = [calls.slice(first, first + chunk)] as const
    const data = encodeFunctionData({ abi, functionName: 'aggregate3', args })
    await execute(chain, [
      { from: account(9).address, to: multicallAddress, data, gas: 10_000_000n },
    ])
  }
}

/** Lets Permit2 move the tokens of each of them. */
export async function approve(
  chain: Chain,
  { asset }: Pick<NetworkConfig, 'asset'>,
  holders: readonly Payer[],
): Promise<void> {
  const args = [Permit.permit2Address, maxUint256] as const
  const data = encodeFunctionData({ abi, functionName: 'approve', args })
  await chain.rpc('anvil_autoImpersonateAccount', [true])
  for (const { address } of holders)
    await chain.rpc('anvil_setBalance', [address, numberToHex(10n ** 18n)])
  await execute(
    chain,
    holders.map(({ address }) => ({ from: address, to: asset.address, data })),
  )
}

/** `count` credentials for each payer, all of them different money. */
export async function credentials(
  { url, protocol, network }: { url: string; protocol: Protocol; network: NetworkConfig },
  holders: readonly Payer[],
  count: number,
): Promise<Credential[][]> {
  const lists: Credential[][] = holders.map(() => [])
  if (protocol === 'upto') return uptoCredentials(url, network, holders, count)
  const required = protocol === 'x402' ? await requirements(url, network) : undefined
  const ids = new Set<string>()
  for (let index = 0; index < count; index++) {
    for (const [position, payer] of holders.entries()) {
      const credential =
        required === undefined
          ? await payMpp(url, network, payer, ids)
          : payX402(required, network, payer)
      lists[position]?.push(credential)
    }
  }
  return lists
}

async function uptoCredentials(
  url: string,
  { id }: NetworkConfig,
  holders: readonly Payer[],
  count: number,
): Promise<Credential[][]> {
  const response = await fetch(url + modelPath, modelRequest)
  await response.arrayBuffer()
  const required: Required = JSON.parse(atob(response.headers.get('payment-required') ?? ''))
  return Promise.all(
    holders.map(async ({ privateKey }) => {
      const signer = privateKeyToAccount(bytesToHex(privateKey))
      const list: Credential[] = []
      while (list.length < count)
        list.push(['payment-signature', await payUpto(required, signer, { network: id })])
      return list
    }),
  )
}

/** A settlement that a payer signs for the payee of the benchmark. */
export function sign(
  transfer: Omit<Transfer.Transfer, 'signature' | 'payer'>,
  network: Pick<NetworkConfig, 'asset'>,
  payer: Payer,
): Transfer.Transfer {
  const unsigned = { ...transfer, payer: payer.address }
  const digest = Transfer.digest(unsigned, network.asset)
  return { ...unsigned, signature: Crypto.sign(digest, payer.privateKey) }
}

async function payMpp(
  url: string,
  network: NetworkConfig,
  payer: Payer,
  ids: Set<string>,
): Promise<Credential> {
  for (;;) {
    const response = await fetch(url + path)
    await response.arrayBuffer()
    const [challenge] = challengesOf(response)
    if (challenge === undefined) throw new Error(`${url} sent no challenge: ${response.status}`)
    // mppx gives equal challenges within a millisecond: the second credential would pay nothing.
    const id = `${challenge.id} ${payer.address}`
    if (ids.has(id)) continue
    ids.add(id)
    const { amount, recipient } = challenge.request
    const signed = sign(
      authorization(network, BigInt(amount), recipient, challengeHash(challenge)),
      network,
      payer,
    )
    const { signature, ...terms } = wire(signed)
    const payload = { type: 'authorization', ...terms, signature }
    const source = `did:pkh:eip155:${network.chainId}:${payer.address}`
    const credential = { challenge: challenge.raw, payload, source }
    return ['authorization', `Payment ${encode(credential, 'base64url')}`]
  }
}

type Offered = { required: Required; accepted: Accept }

async function requirements(url: string, { id }: NetworkConfig): Promise<Offered> {
  const response = await fetch(url + path)
  await response.arrayBuffer()
  const required: Required = JSON.parse(atob(response.headers.get('payment-required') ?? ''))
  const accepted = required.accepts.find(
    ({ network, extra }) => network === id && extra.assetTransferMethod !== 'permit2',
  )
  if (accepted === undefined) throw new Error(`${url} offers nothing on ${id}`)
  return { required, accepted }
}

function payX402(
  { required, accepted }: Offered,
  network: NetworkConfig,
  payer: Payer,
): Credential {
  const terms = authorization(network, BigInt(accepted.amount), accepted.payTo, randomNonce())
  const { signature, ...authorized } = wire(sign(terms, network, payer))
  const credential = {
    x402Version: 2,
    payload: { signature, authorization: authorized },
    resource: required.resource,
    accepted,
  }
  return ['payment-signature', encode(credential, 'base64')]
}

function authorization(
  network: NetworkConfig,
  amountAtomic: bigint,
  payee: `0x${string}`,
  nonce: `0x${string}`,
): Omit<Transfer.Transfer, 'signature' | 'payer'> {
  return {
    method: 'eip3009',
    network: network.id,
    chainId: network.chainId,
    asset: network.asset.address,
    payee,
    amountAtomic,
    nonce,
    validAfter: 0n,
    validBefore: inSeconds(300),
  }
}

function wire({ payer, payee, amountAtomic, validBefore, nonce, signature }: Transfer.Transfer) {
  return {
    from: payer,
    to: payee,
    value: `${amountAtomic}`,
    validAfter: '0',
    validBefore: `${validBefore}`,
    nonce,
    signature,
  }
}

function encode(value: unknown, alphabet: 'base64' | 'base64url'): string {
  return Buffer.from(JSON.stringify(value)).toString(alphabet)
}
