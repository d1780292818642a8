import { join } from 'node:path'
import type { Node, SourceFile } from 'typescript/unstable/ast'
import { SyntaxKind } from 'typescript/unstable/ast'
import { API } from 'typescript/unstable/async'

/** One function of the source. */
export type FunctionSite = {
  /** Relative to the root. */
  file: string
  line: number
  /** Undefined for a callback. */
  name: string | undefined
  isExported: boolean
  /** Whether its body is one call with values that it has, such as `return f(context, input)`. */
  passesOn: boolean
}

/** The sources of src and db, each function of which first calls `__ran` with the index of its site. */
export async function instrument(
  root: string,
): Promise<{ sources: ReadonlyMap<string, string>; sites: readonly FunctionSite[] }> {
  const sources = new Map<string, string>()
  const sites: FunctionSite[] = []
  const api = new API({ cwd: root })
  try {
    const config = join(root, 'tsconfig.json')
    const snapshot = await api.updateSnapshot({ openProjects: [config] })
    const program = snapshot.getProject(config)?.program
    if (program === undefined) throw new Error(`no project ${config}`)
    const files = await Array.fromAsync(new Bun.Glob('{src,db}/**/*.ts').scan(root))
    for (const file of files.filter((each) => !each.startsWith('src/demo/')).toSorted()) {
      const path = join(root, file)
      const source = await program.getSourceFile(path)
      if (source !== undefined) sources.set(path, instrumentFile(source, file, sites))
    }
  } finally {
    await api.close()
  }
  return { sources, sites }
}

function instrumentFile(source: SourceFile, file: string, sites: FunctionSite[]): string {
  const { text } = source
  const edits: { at: number; text: string }[] = []
  const visit = (node: Node): void => {
    const body = bodyOf(node)
    if (body !== undefined) {
      const call = `__ran(${sites.length})`
      const start = body.getStart(source)
      if (body.kind === SyntaxKind.Block) edits.push({ at: start + 1, text: `${call};` })
      else edits.push({ at: start, text: `(${call},` }, { at: body.end, text: ')' })
      const line = text.slice(0, node.getStart(source)).split('\n').length
      const name = nameOf(node, source)
      const isExported = /^export\b/.test(text.slice(node.getStart(source)))
      sites.push({ file, line, name, isExported, passesOn: passesOn(body) })
    }
    node.forEachChild(visit)
  }
  visit(source)
  let made = text
  for (const edit of edits.toSorted((a, b) => b.at - a.at)) {
    made = made.slice(0, edit.at) + edit.text + made.slice(edit.at)
  }
  return made
}

const functions: ReadonlySet<SyntaxKind> = new Set([
  SyntaxKind.FunctionDeclaration,
  SyntaxKind.FunctionExpression,
  SyntaxKind.ArrowFunction,
  SyntaxKind.MethodDeclaration,
  SyntaxKind.GetAccessor,
  SyntaxKind.SetAccessor,
  SyntaxKind.Constructor,
])

type Parts = { body?: Node; name?: Node; expression?: Node; arguments?: readonly Node[] }

function bodyOf(node: Node): Node | undefined {
  return functions.has(node.kind) ? (node as Parts).body : undefined
}

/** A name of its own, or that of the variable or property that holds it. */
function nameOf(node: Node, source: SourceFile): string | undefined {
  const own = (node as Parts).name
  if (own !== undefined) return own.getText(source)
  const { parent } = node
  const holds =
    parent.kind === SyntaxKind.VariableDeclaration || parent.kind === SyntaxKind.PropertyAssignment
  return holds ? (parent as Parts).name?.getText(source) : undefined
}

function passesOn(body: Node): boolean {
  const call = callOf(body)
  return (call as Parts | undefined)?.arguments?.every(isPlain) === true
}

/** The only call of a body, without `return`, `await` and `void`. */
function callOf(node: Node): Node | undefined {
  switch (node.kind) {
    case SyntaxKind.CallExpression:
      return node
    case SyntaxKind.Block: {
      const { statements } = node as Node & { statements: readonly Node[] }
      const [only, ...others] = statements
      return only === undefined || others.length > 0 ? undefined : callOf(only)
    }
    case SyntaxKind.ReturnStatement:
    case SyntaxKind.ExpressionStatement:
    case SyntaxKind.AwaitExpression:
    case SyntaxKind.VoidExpression:
    case SyntaxKind.ParenthesizedExpression: {
      const inner = (node as Parts).expression
      return inner && callOf(inner)
    }
    default:
      return undefined
  }
}

/** A name, or a member of what a name holds. */
function isPlain(node: Node): boolean {
  if (node.kind === SyntaxKind.Identifier) return true
  const inner = (node as Parts).expression
  return node.kind === SyntaxKind.PropertyAccessExpression && inner !== undefined && isPlain(inner)
}
