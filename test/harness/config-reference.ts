import { file } from '../../src/config/keys'
import { tableOf } from '../../src/config/kinds'

/** A JSON Schema, as far as the schema of the file needs it. */
export type Node = {
  type?: string
  description?: string
  default?: unknown
  const?: string
  minimum?: number
  maximum?: number
  properties?: Record<string, Node>
  required?: readonly string[]
  items?: Node
  anyOf?: readonly Node[]
  patternProperties?: Record<string, Node>
}

export type TableNode = { heading: string; node: Node }

/** The tables of the file in its order, each below the heading that the file writes. */
export function tablesOf(): TableNode[] {
  const root = JSON.parse(JSON.stringify(tableOf(file))) as Node
  return Object.entries(root.properties ?? {}).flatMap(([key, node]) => inside(node, key))
}

function inside(node: Node, path: string): TableNode[] {
  const named = Object.values(node.patternProperties ?? {})[0]
  if (named?.properties !== undefined) return inside(named, `${path}."ID"`)
  if (node.items?.properties !== undefined) return tables(node.items, `[[${path}]]`, path)
  return node.properties === undefined ? [] : tables(node, `[${path}]`, path)
}

function tables(node: Node, heading: string, path: string): TableNode[] {
  const inner = Object.entries(node.properties ?? {}).flatMap(([key, each]) =>
    inside(each, `${path}.${key}`),
  )
  return [{ heading, node }, ...inner]
}

export function isTable(node: Node): boolean {
  return inside(node, 'x').length > 0
}

function typeOf(node: Node): string {
  const { minimum, maximum } = node
  if (node.const !== undefined) return `\`"${node.const}"\``
  if (node.anyOf !== undefined) return node.anyOf.map(typeOf).join(' or ')
  if (node.type === 'integer') return `integer, ${minimum} to ${maximum}`
  if (node.type === 'array') return `array of ${typeOf(node.items ?? {})}`
  if (node.type === 'object') return 'table'
  return node.type ?? 'any'
}

export function renderReference(): string {
  const parts = tablesOf().map(({ heading, node }) => {
    const rows = Object.entries(node.properties ?? {}).flatMap(([key, each]) => {
      if (isTable(each)) return []
      const fallback = each.default === undefined ? '' : `\`${JSON.stringify(each.default)}\``
      const given = node.required?.includes(key) ? 'required' : fallback
      return [`| \`${key}\` | ${typeOf(each)} | ${given} | ${each.description ?? ''} |`]
    })
    return [
      `## \`${heading}\``,
      '',
      '| key | type | default | meaning |',
      '|---|---|---|---|',
      ...rows,
    ].join('\n')
  })
  return `# Keys of merchants.toml

With this page you can look up every key of the file with its type, default and meaning. It is written
from \`src/config/keys.ts\` by \`bun run docs\`. Amounts, sizes and wei are strings;
\`turnpike check\` reports each fault with its line. [sell.md](sell.md) shows the keys in use, and
[pricing.md](pricing.md) explains meters.

The networks \`base\`, \`base-sepolia\` and \`robinhood\` are built in: \`networks = ["base"]\` below
\`[service]\` needs no table of its own. A table \`[networks."eip155:8453"]\` then replaces single keys
of it, and its required keys may be left out. A table of another chain in the list is complete. Without
\`networks\` below \`[service]\` the tables are the networks, and each is complete.

${parts.join('\n\n')}
`
}
