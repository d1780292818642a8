import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import manifest from 'solc/package.json'

type Output = {
  errors?: { severity: string; formattedMessage: string }[]
  contracts: Record<string, Record<string, Contract>>
}
type Contract = {
  abi: unknown
  evm: { bytecode: { object: string }; deployedBytecode: { object: string } }
}

const directory = import.meta.dir
const sources = [
  'Signatures.sol',
  'Stablecoin.sol',
  'Permit2Proxy.sol',
  'ExactPermit2Proxy.sol',
  'UptoPermit2Proxy.sol',
  'SmartWallet.sol',
  'StockMarket.sol',
]
const published = [
  'Stablecoin',
  'ExactPermit2Proxy',
  'UptoPermit2Proxy',
  'SmartWallet',
  'GreedyWallet',
  'StockRegistry',
  'StockToken',
  'PriceFeed',
  'LiquidityProvider',
]

/** Path of the compiled contracts, and of a digest of their sources and of themselves. */
export const artifactsPath = join(directory, 'artifacts.generated.json')
export const digestPath = join(directory, 'artifacts.sha256')

/** The input of the compiler. */
function inputOf() {
  return {
    language: 'Solidity',
    sources: Object.fromEntries(
      sources.map((name) => [name, { content: readFileSync(join(directory, name), 'utf8') }]),
    ),
    settings: {
      optimizer: { enabled: true, runs: 200 },
      evmVersion: 'cancun',
      metadata: { appendCBOR: false, bytecodeHash: 'none' },
      outputSelection: {
        '*': { '*': ['abi', 'evm.bytecode.object', 'evm.deployedBytecode.object'] },
      },
    },
  }
}

/**
 * Compiles the contracts of this folder: the text of artifacts.generated.json. The same sources
 * give the same text everywhere, no metadata hash is appended. Throws with the compiler's messages.
 */
async function compile(): Promise<string> {
  // Loading the compiler takes longer than all the rest.
  const { default: solc } = await import('solc')
  const output = JSON.parse(solc.compile(JSON.stringify(inputOf()))) as Output
  const messages = (output.errors ?? []).map((error) => error.formattedMessage)
  if (messages.length > 0) throw new Error(messages.join('\n'))
  const artifacts = Object.values(output.contracts)
    .flatMap((contracts) => Object.entries(contracts))
    .filter(([name]) => published.includes(name))
    .map(([name, { abi, evm }]) => [
      name,
      {
        abi,
        bytecode: `0x${evm.bytecode.object}`,
        deployedBytecode: `0x${evm.deployedBytecode.object}`,
      },
    ])
  return `${JSON.stringify(Object.fromEntries(artifacts))}\n`
}

/** Digest of the compiler's version, of its input and of these artifacts; a line of text. */
export async function digestOf(path: string): Promise<string> {
  const made = [manifest.version, JSON.stringify(inputOf()), published.join()]
  const parts = [...made, await Bun.file(path).text()]
  return `${new Bun.CryptoHasher('sha256').update(JSON.stringify(parts)).digest('hex')}\n`
}

/** With `--check` it compares and writes nothing. */
if (import.meta.main) {
  const fresh = await compile()
  if (!Bun.argv.includes('--check')) {
    await Bun.write(artifactsPath, fresh)
    await Bun.write(digestPath, await digestOf(artifactsPath))
  } else if (fresh !== (await Bun.file(artifactsPath).text()))
    throw new Error('artifacts.generated.json is not what the sources compile to')
}
